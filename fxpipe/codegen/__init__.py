"""Every stage as Python source that can be read, compared and debugged."""
