"""Generated ops."""
