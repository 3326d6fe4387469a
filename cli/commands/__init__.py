"""The commands of ``coffer``, a file a noun. Each asks the management API and prints; none decides."""
