"""`example-chat`: conversations in which the user states facts and asks for them."""
