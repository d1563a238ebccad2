"""`example-en-fr`: official English sentences and their French, by a recurrent network."""
