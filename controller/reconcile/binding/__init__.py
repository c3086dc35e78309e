"""From a decision to the API server: claims are written, scheduling gates removed, claim templates made."""
