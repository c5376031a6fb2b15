"""What an object store holds by name: concepts of users, directions of runs, trained scorers."""
