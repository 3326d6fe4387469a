"""What tests share: bounded waits, leak checks, the daemon, clients and upstream commands."""
