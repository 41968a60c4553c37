"""One module for each revision of the trainer's tables."""
