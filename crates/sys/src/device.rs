//! Makes requests about network devices. See netdevice(7).

/// Creates a request about the network device with this name; all other fields are zero.
pub fn request(name: &str) -> libc::ifreq {
    // SAFETY: ifreq is plain data for which all zeros is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last byte stays zero.
    let room = request.ifr_name.len() - 1;
    for (to, from) in request.ifr_name[..room].iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request
}
