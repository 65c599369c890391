"""What runs inside the two confined processes of a code check. Standard library only: they can read nothing else."""
