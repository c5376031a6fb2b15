"""What tasks bring: passages, pooled vectors or kept states aligned with them, and the component that S4 takes out."""
