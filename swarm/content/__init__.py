"""Contents and their names: CIDs, UnixFS, manifests, canonical URLs, selectors. Pure: no disk, no network."""
