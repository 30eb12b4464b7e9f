"""Many tables in arrays of fixed size."""
