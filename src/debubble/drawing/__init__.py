"""Pictures and tables; nothing here simulates."""
