"""What several trainings of examples use: the loop, the folder, the model card."""
