//! Who has which hardware address: ARP and neighbour discovery as a state machine without I/O.
