"""The world of pictures: scenes, how they are rendered, and what is said of them."""
