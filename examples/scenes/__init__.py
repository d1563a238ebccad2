"""Pictures of one or two things before a background, their captions and scores."""
