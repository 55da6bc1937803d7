"""What check_manifests.py checks, one module for each subject."""
