"""One module for each revision of the registry's tables."""
