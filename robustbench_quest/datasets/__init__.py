from .base import Dataset, open_dataset

__all__ = ["Dataset", "open_dataset"]
