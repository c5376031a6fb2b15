"""The corpus of real text that ships: which passages it has, and how they are cut, matched and credited."""
