//! Implements AF_XDP devices: frames of an interface that bypass the kernel's network stack, beside
//! it (af_xdp(7), Documentation/networking/af_xdp.rst).
//!
//! A small XDP program of ours runs for every received frame and takes only claimed ones (see
//! [`Claim`]). All others continue to the kernel, which keeps working on the same interface and
//! addresses. No library or compiler is needed: the program is assembled here.
//!
//! Long frames: if the program runs after the driver (see [`AttachMode::Auto`]), a frame that
//! arrives in one piece from the other end of a virtual cable (veth) is assembled from its buffers.
//! A frame that has to be cut is sent through a packet socket, because AF_XDP has no segmentation
//! offload (see [`XdpOptions::transmit_segmentation`]). Otherwise a cable would carry 45 frames in
//! place of one long frame, and its queue of 256 frames would lose them in bursts.
//!
//! Needs Linux 5.10, 6.6 for frames in several buffers, and 6.11 for transmit checksums in the
//! kernel. Before 6.6 a virtual cable gets a native program, which disables the segmentation
//! offload of its other end. Where only a generic program is possible, receive offloads (GRO, LRO)
//! must be off.
//!
//! Opening an interface needs CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF (on older kernels also
//! CAP_PERFMON), and CAP_IPC_LOCK or a sufficient `ulimit -l` for the memory of the frames. The
//! program does not handle VLAN tags, and TCP after IPv4 options or IPv6 extension headers: these
//! frames stay with the kernel.

mod assembler;
mod bpf;
mod error;
mod interface;
mod memory;
mod ownership;
mod partial;
mod program;
mod queue;
mod rings;
mod segmenter;
mod socket;

pub use self::error::XdpError;
pub use self::ownership::{Attachment, Claim, Ownership};
pub use self::queue::XdpDevice;

use self::bpf::{Link, Map, MapKind};
use self::interface::Interface;
use self::memory::{Frames, Mapping};
use self::segmenter::Segmenter;
use self::socket::{RingSizes, Socket, Unbound};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

/// Bytes that the kernel keeps free before a received frame (`XDP_PACKET_HEADROOM`).
const PACKET_HEADROOM_BYTES: u32 = 256;
/// The length of an Ethernet header with two tags.
const LINK_HEADER_BYTES_MAX: u32 = 14 + 8;
const REPORT: &str = "report this as a bug";
/// The reason for a generic program on a virtual cable with one queue. A native program would
/// disable the segmentation offload of the kernel at the other end, which would then send 45 frames
/// instead of one, into a ring of 256.
const WHOLE_FRAMES: &str = "a virtual cable keeps its segmentation offload that way";

/// Where the program runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AttachMode {
    /// Native, otherwise generic. On a virtual cable with a single queue generic, so that the other
    /// end's long frames arrive in one piece. [`Ownership::attachment`] returns the choice and its
    /// reason.
    #[default]
    Auto,
    /// Native: in the driver, or an error.
    Native,
    /// Generic: after the driver. On a virtual cable all frames then arrive on the first queue.
    Generic,
}

/// How frames are transferred into the UMEM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CopyMode {
    /// Zero-copy, otherwise by copying; [`XdpDevice::is_zero_copy`] returns the choice.
    #[default]
    Auto,
    /// By the driver without a copy, or an error.
    ZeroCopy,
    /// By a copy in the kernel, which works on all interfaces.
    Copy,
}

impl CopyMode {
    fn flags(self) -> u16 {
        match self {
            CopyMode::Auto => 0,
            CopyMode::ZeroCopy => libc::XDP_ZEROCOPY,
            CopyMode::Copy => libc::XDP_COPY,
        }
    }
}

/// The settings of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XdpOptions {
    /// Where the program runs.
    pub attach: AttachMode,
    /// How frames are transferred into the UMEM.
    pub copy: CopyMode,
    /// Takes every frame from the kernel, for an interface with no other use; claims then have no
    /// effect.
    pub every_frame: bool,
    /// Bytes of a frame in the UMEM: 2,048 or 4,096. A longer received frame uses several; before
    /// Linux 6.6 it is dropped. A sent frame must fit into one, with 46 bytes to spare, unless the
    /// kernel cuts it.
    pub frame_bytes: u32,
    /// Frames of each queue for receiving: a power of two, 64 to 32,768. They must hold the data in
    /// flight to a process that does not get the CPU: the sum of the windows of its busy
    /// connections.
    pub receive_frames: u32,
    /// Frames of each queue for sending: a power of two, 64 to 32,768.
    pub transmit_frames: u32,
    /// Whether the kernel completes checksums, where it can.
    pub transmit_checksum: bool,
    /// Whether the kernel cuts frames of up to 64 KiB, on a virtual cable in copy mode; these
    /// frames are sent through a packet socket.
    pub transmit_segmentation: bool,
    /// Most ports and addresses that can be claimed at once; unused ones take no memory.
    pub max_claims: u32,
}

impl Default for XdpOptions {
    fn default() -> XdpOptions {
        XdpOptions {
            attach: AttachMode::Auto,
            copy: CopyMode::Auto,
            every_frame: false,
            frame_bytes: 4096,
            receive_frames: 2048,
            transmit_frames: 512,
            transmit_checksum: true,
            transmit_segmentation: true,
            max_claims: 1 << 18,
        }
    }
}

impl XdpOptions {
    fn check(&self) -> Result<(), XdpError> {
        if !matches!(self.frame_bytes, 2048 | 4096) {
            return Err(XdpError::Option("frame_bytes must be 2048 or 4096"));
        }
        let is_ring_size = |count: u32| count.is_power_of_two() && (64..=32_768).contains(&count);
        if !is_ring_size(self.receive_frames) || !is_ring_size(self.transmit_frames) {
            return Err(XdpError::Option(
                "receive_frames and transmit_frames must be powers of two from 64 to 32768",
            ));
        }
        if self.max_claims == 0 {
            return Err(XdpError::Option("max_claims must be at least 1"));
        }
        Ok(())
    }
}

/// An interface that is open for user-level TCP.
#[derive(Debug)]
pub struct XdpPort {
    /// One device for each receive queue, in their order; each may move to its own thread.
    pub devices: Vec<XdpDevice>,
    /// The claims on the kernel's packets; empty at first.
    pub ownership: Ownership,
}

impl XdpPort {
    /// Opens an interface of the calling thread's network namespace, with a device for each of its
    /// receive queues; all share one UMEM. No packet is taken from the kernel before a claim. Waits
    /// up to five seconds for a queue that was just closed, because the kernel closes sockets in
    /// the background.
    ///
    /// # Errors
    /// [`XdpError`] with cause and remedy.
    pub fn open(interface: &str, queues: usize, options: &XdpOptions) -> Result<XdpPort, XdpError> {
        options.check()?;
        let interface = Interface::open(interface)?;
        check_queues(&interface, queues)?;
        let claims = Map::new(MapKind::Hash, options.max_claims)?;
        let sockets: Map<[u8; 4]> = Map::new(MapKind::XskMap, queues as u32)?;
        let several = XdpPort::takes_long_frames()?;
        if !several {
            check_length(&interface, options)?;
        }
        let program = load_program(&claims, &sockets, options.every_frame, several)?;
        let (link, attachment) = attach(&program, &interface, options.attach, several)?;
        let devices = open_queues(&interface, queues, options, &attachment, several, &sockets)?;
        let ownership = Ownership::new(claims, link, attachment);
        Ok(XdpPort { devices, ownership })
    }
}

impl XdpPort {
    /// Checks that [`XdpPort::open`] would find the interface, its queues and the rights that it
    /// needs. The interface is not changed.
    ///
    /// # Errors
    /// [`XdpError`] with cause and remedy.
    pub fn check(interface: &str, queues: usize) -> Result<(), XdpError> {
        let interface = Interface::open(interface)?;
        check_queues(&interface, queues)?;
        let claims = Map::new(MapKind::Hash, 1)?;
        let sockets: Map<[u8; 4]> = Map::new(MapKind::XskMap, queues as u32)?;
        let several = XdpPort::takes_long_frames()?;
        load_program(&claims, &sockets, false, several).map(|_| ())
    }

    /// Whether this kernel supports received frames in several buffers, so that a frame may be
    /// longer than one: from Linux 6.6 on.
    ///
    /// # Errors
    /// [`XdpError`] if the kernel has no AF_XDP sockets, or the process may not create one.
    pub fn takes_long_frames() -> Result<bool, XdpError> {
        Unbound::open().map(|socket| socket.takes_several_buffers())
    }
}

fn check_queues(interface: &Interface, queues: usize) -> Result<(), XdpError> {
    if queues == interface.receive_queues {
        return Ok(());
    }
    let (present, asked) = (interface.receive_queues, queues);
    Err(XdpError::Queues { interface: interface.name.clone(), present, asked })
}

/// Checks that a frame fits into one buffer, where it can have only one.
fn check_length(interface: &Interface, options: &XdpOptions) -> Result<(), XdpError> {
    let frame = interface.mtu.saturating_add(LINK_HEADER_BYTES_MAX);
    let room = options.frame_bytes - PACKET_HEADROOM_BYTES;
    if frame <= room {
        return Ok(());
    }
    Err(XdpError::LongFrames { interface: interface.name.clone(), frame, room })
}

fn load_program(
    claims: &Map<program::ClaimKey>,
    sockets: &Map<[u8; 4]>,
    every_frame: bool,
    several: bool,
) -> Result<OwnedFd, XdpError> {
    let code = if every_frame {
        program::assemble_unfiltered(sockets.descriptor())
    } else {
        program::assemble(claims.descriptor(), sockets.descriptor())
    };
    let code = code.map_err(|error| {
        let source = io::Error::new(io::ErrorKind::InvalidInput, error);
        XdpError::System { action: "assemble the XDP program", source, remedy: REPORT }
    })?;
    bpf::load_program(&code, several)
}

/// Attaches the program to the interface in the given mode.
fn attach(
    program: &OwnedFd,
    interface: &Interface,
    mode: AttachMode,
    several: bool,
) -> Result<(Link, Attachment), XdpError> {
    let single = interface.receive_queues == 1;
    let reason = match mode {
        AttachMode::Generic => None,
        AttachMode::Auto if interface.virtual_cable && single && several => {
            Some(WHOLE_FRAMES.to_owned())
        }
        AttachMode::Auto | AttachMode::Native => match Link::new(program, interface.index, true) {
            Ok(link) => return Ok((link, Attachment::Native)),
            Err(error) if mode == AttachMode::Native || !may_be_generic(&error) => {
                return Err(attach_error(interface, error));
            }
            Err(error) => Some(format!("native was refused: {error}")),
        },
    };
    let link = Link::new(program, interface.index, false)
        .map_err(|error| attach_error(interface, error))?;
    if let Some(reason) = &reason {
        tracing::info!("XDP on {} is generic: {reason}", interface.name);
    }
    if !several {
        tracing::warn!(
            "XDP on {0} is generic, and this kernel drops what receive offloads make longer than a \
             buffer: switch them off with `ethtool -K {0} gro off lro off`",
            interface.name
        );
    }
    Ok((link, Attachment::Generic(reason)))
}

/// Whether the error of a native program concerns only the driver, so that a generic one may work.
fn may_be_generic(error: &io::Error) -> bool {
    !matches!(
        error.raw_os_error(),
        Some(libc::EPERM | libc::EACCES | libc::EBUSY | libc::EEXIST | libc::ENODEV)
    )
}

fn attach_error(interface: &Interface, source: io::Error) -> XdpError {
    match source.raw_os_error() {
        Some(libc::EBUSY | libc::EEXIST) => {
            XdpError::ProgramAttached { interface: interface.name.clone(), source }
        }
        _ => error::failed(
            "attach the XDP program",
            "lower the interface's MTU, or choose the mode `generic`",
        )(source),
    }
}

/// Opens a device for each queue, all over one UMEM, and stores each in the program's map of
/// sockets.
fn open_queues(
    interface: &Interface,
    queues: usize,
    options: &XdpOptions,
    attachment: &Attachment,
    several: bool,
    sockets: &Map<[u8; 4]>,
) -> Result<Vec<XdpDevice>, XdpError> {
    let sizes = RingSizes { receive: options.receive_frames, transmit: options.transmit_frames };
    let frames = (options.receive_frames + options.transmit_frames) as usize * queues;
    let umem = Mapping::anonymous(frames * options.frame_bytes as usize)
        .map_err(error::failed("map memory for frames", "set fewer frames, or free memory"))?;
    let umem = Arc::new(umem);
    // Without a native program no driver can write into the UMEM.
    let mode = match (options.copy, attachment) {
        (CopyMode::Auto, Attachment::Generic(_)) => CopyMode::Copy,
        (mode, _) => mode,
    };
    let flags = mode.flags() | if several { libc::XDP_USE_SG } else { 0 };
    let mut bound: Vec<(Socket, Frames)> = Vec::with_capacity(queues);
    let mut metadata = false;
    for (queue, frames) in Frames::split(&umem, options.frame_bytes, queues).into_iter().enumerate()
    {
        let socket = Unbound::open()?;
        let first = bound.first().map(|(socket, _)| socket);
        if first.is_none() {
            metadata = socket.register(&umem, options.frame_bytes, options.transmit_checksum)?;
        }
        let queue = queue as u32;
        let socket = socket.bind(interface, queue, sizes, flags, &frames, first)?;
        let descriptor = socket.descriptor.as_raw_fd() as u32;
        sockets
            .set(&queue.to_ne_bytes(), descriptor)
            .map_err(error::failed("put an AF_XDP socket into its map", REPORT))?;
        bound.push((socket, frames));
    }
    let device = |(socket, frames): (Socket, Frames)| {
        let cuts = options.transmit_segmentation && interface.virtual_cable && !socket.zero_copy;
        let segmenter = cuts.then(|| Segmenter::open(interface)).transpose()?;
        let receive_frames = options.receive_frames;
        Ok(XdpDevice::new(socket, frames, interface, receive_frames, metadata, segmenter))
    };
    bound.into_iter().map(device).collect()
}
