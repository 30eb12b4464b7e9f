"""Tables on a device, and the operations on them."""
