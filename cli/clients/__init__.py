"""Other programs' configuration files: where they are, how they are read, and how one entry in them is changed.

``jsonc`` and ``tomltext`` are the pure editors, ``known`` the list of clients, ``foreign`` reads server entries,
``files`` is the only room that touches a disk.
"""
