"""Questions about published tables that were asked once: claims of papers, and arithmetic of the published tables."""
