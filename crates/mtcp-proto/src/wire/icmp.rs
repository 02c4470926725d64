//! ICMP for IPv4 (RFC 792, 1122, 1191) and IPv6 (RFC 4443, 8201), as far as TCP needs it.
