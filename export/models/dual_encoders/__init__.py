"""Images and texts in one vector space: CLIP, SigLIP, and what finds labels in an image."""
