"""Vision: image classification and object tracking."""
