"""What tasks that continue a text need."""
