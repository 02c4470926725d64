//! Opens connections: for a SYN, for a valid SYN cookie, and actively for an application.

use super::demultiplex::{Found, Segment};
use super::events::Notice;
use super::listeners::Listener;
use super::table::{AdmissionClass, Entry, Listening, Slot, Stage};
use super::{Stack, cookies};
use crate::config::{ListenOptions, Options, SynCookies};
use crate::error::Error;
use crate::flow::Flow;
use crate::sequence::Sequence;
use crate::socket::SocketId;
use crate::tcp::{Connection, ConnectionParameters, Remembered};
use crate::wire::tcp::Flags;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

/// How long after the last cookie was sent one may be returned: two minutes of 64 seconds.
const COOKIES_LAST: Duration = Duration::from_secs(128);
/// The segment size of a peer that announces none (RFC 9293, section 3.7.1).
const DEFAULT_SEGMENT: u16 = 536;

impl Stack {
    /// Implements [`Stack::listen`].
    pub(super) fn start_listening(
        &mut self,
        local: SocketAddr,
        options: &ListenOptions,
    ) -> Result<SocketId, Error> {
        options.check()?;
        if !local.ip().is_unspecified() && !self.is_own(local.ip()) || local.port() == 0 {
            return Err(Error::AddressNotAvailable);
        }
        let listener = Listener::new(local, options);
        let names = listener.names();
        let shares = |index: &u32| {
            let other = self.table.listening(*index);
            options.reuse_port && other.is_some_and(|other| other.listener.options.reuse_port)
        };
        if listener.names().any(|name| !self.listeners.of_name(name).iter().all(shares)) {
            return Err(Error::AddressInUse);
        }
        if !self.make_room(AdmissionClass::Application) {
            return Err(Error::TooMany);
        }
        let listening = Box::new(Listening { listener, notice: Notice::default() });
        let socket = self.table.insert(Slot::Listener(listening))?;
        names.for_each(|name| self.listeners.insert(name, socket.index));
        Ok(socket)
    }

    /// Implements [`Stack::accept`].
    pub(super) fn take_waiting(&mut self, listener: SocketId) -> Result<SocketId, Error> {
        let listening = match self.table.socket(listener)? {
            Slot::Listener(listening) => listening,
            Slot::Connection(_) => return Err(Error::NotListening),
        };
        let index = listening.listener.waiting.first().ok_or(Error::WouldBlock)?;
        let socket = self.table.id(index).ok_or(Error::WouldBlock)?;
        self.set_stage(index, Stage::Held);
        self.update_schedule(index);
        Ok(socket)
    }

    /// Handles a SYN. If it replaces a connection in TIME_WAIT, `least` is the smallest initial
    /// number of the new connection (RFC 6191). A cookie cannot encode this number, and a
    /// retransmitted SYN would not provide it. Such a connection is therefore always added to the
    /// backlog. There are no more of them than there were records in TIME_WAIT.
    pub(super) fn take_syn(&mut self, index: u32, segment: &Segment<'_>, least: Option<Sequence>) {
        let Some(listening) = self.table.listening(index) else { return };
        let replaces = least.is_some();
        let full = self.half_open >= self.shared.config.max_half_open && !replaces;
        let mode = self.shared.config.syn_cookies;
        let listener = &listening.listener;
        if listener.is_full() || full && mode == SynCookies::Never {
            self.shared.counters.drop_backlog += 1;
            return;
        }
        if self.table.is_full() && self.expendable(AdmissionClass::Peer).is_none() {
            // The peer would believe a cookie, and there would be no room when the cookie is
            // returned.
            self.shared.counters.drop_table_full += 1;
            return;
        }
        let parameters = self.parameters(&segment.flow, &listener.options.connection, least);
        if full || mode == SynCookies::Always && !replaces {
            return self.send_cookie(segment, &parameters);
        }
        if !self.make_room(AdmissionClass::Syn) {
            if mode == SynCookies::WhenFull && !replaces {
                return self.send_cookie(segment, &parameters);
            }
            self.shared.counters.drop_table_full += 1;
            return;
        }
        let context = &mut self.shared.context();
        let connection = Connection::answer(&parameters, &segment.header, context);
        self.enter_half_open(index, segment, connection);
    }

    /// Answers a SYN with a cookie. The SYN-ACK has the options of the resulting connection, except
    /// for those that the cookie cannot encode.
    fn send_cookie(&mut self, segment: &Segment<'_>, parameters: &ConnectionParameters) {
        let now = self.shared.now;
        let context = &mut self.shared.context();
        let mut passing = Connection::answer(parameters, &segment.header, context);
        let mut header = passing.syn_header(context);
        let options = &mut header.options;
        // Without timestamps the peer returns no other option, so the SYN-ACK may not offer any.
        if options.timestamps.is_none() {
            options.window_scale = None;
            options.sack_permitted = false;
            header.flags = Flags::SYN.with(Flags::ACK);
        }
        let offered = segment.header.options;
        let kept = Remembered {
            maximum_segment: offered.maximum_segment.unwrap_or(DEFAULT_SEGMENT),
            window_scale: offered.window_scale.filter(|_| options.window_scale.is_some()),
            sack_permitted: options.sack_permitted,
            timestamps: options.timestamps.is_some(),
            ecn: header.flags.contains(Flags::ECE),
        };
        let clock = options.timestamps.map_or(0, |timestamps| timestamps.value);
        let key = self.keys.cookie;
        let peer_initial = segment.header.sequence;
        let cookie = cookies::make(key, &segment.flow, now, peer_initial, &kept, clock);
        header.sequence = cookie.initial;
        if let Some(timestamps) = &mut options.timestamps {
            timestamps.value = cookie.timestamp;
        }
        header.source_port = segment.flow.local_port();
        header.destination_port = segment.flow.remote_port();
        passing.release(&mut self.shared.pool);
        if self.replies.push(segment.flow, header) {
            self.shared.counters.cookies_sent += 1;
            self.cookies_until = now + COOKIES_LAST;
        } else {
            self.shared.counters.drop_backlog += 1;
        }
    }

    /// Whether a peer may still return a cookie.
    pub(super) fn cookies_are_out(&self) -> bool {
        self.shared.now < self.cookies_until
    }

    /// Creates a connection from an ACK with a valid cookie.
    pub(super) fn take_cookie(
        &mut self,
        index: u32,
        segment: &Segment<'_>,
        remembered: &Remembered,
    ) {
        let Some(listening) = self.table.listening(index) else { return };
        if listening.listener.is_full() {
            self.shared.counters.drop_backlog += 1;
            return;
        }
        let options = listening.listener.options.connection;
        if !self.make_room(AdmissionClass::Peer) {
            self.shared.counters.drop_table_full += 1;
            return;
        }
        self.shared.counters.cookies_accepted += 1;
        let mut parameters = self.parameters(&segment.flow, &options, None);
        parameters.initial = segment.header.acknowledgement - 1;
        let context = &mut self.shared.context();
        let connection = Connection::resume(&parameters, remembered, &segment.header, context);
        if let Some(connection) = self.enter_half_open(index, segment, connection) {
            self.segment_for_connection(connection, segment);
        }
    }

    fn enter_half_open(
        &mut self,
        listener: u32,
        segment: &Segment<'_>,
        connection: Connection,
    ) -> Option<u32> {
        let stage = Stage::HalfOpen(listener);
        let entry = Entry::new(segment.hash, stage, connection);
        let index = self.table.insert(Slot::Connection(entry)).ok()?.index;
        self.table.link_to_listener(index, stage);
        self.half_open += 1;
        self.flows.insert(segment.hash, index);
        self.update_schedule(index);
        Some(index)
    }

    /// The parameters of a new connection, whose initial number is `least` or later.
    fn parameters(
        &self,
        flow: &Flow,
        options: &Options,
        least: Option<Sequence>,
    ) -> ConnectionParameters {
        let (initial, timestamp_offset) = self.keys.initial(flow, self.shared.now);
        let path_mtu = self.path_mtus.get(flow.remote().ip(), self.shared.now);
        ConnectionParameters {
            flow: *flow,
            initial: least.map_or(initial, |least| least.max(initial)),
            timestamp_offset,
            options: *options,
            path_mtu: path_mtu
                .map_or(self.shared.config.mtu, |mtu| mtu.min(self.shared.config.mtu)),
        }
    }

    /// Implements [`Stack::connect`].
    pub(super) fn start_connecting(
        &mut self,
        local: Option<SocketAddr>,
        remote: SocketAddr,
        options: &Options,
    ) -> Result<SocketId, Error> {
        options.check()?;
        let address = self.local_address(local, remote)?;
        let broadcast = remote.ip() == IpAddr::V4(Ipv4Addr::BROADCAST);
        if remote.ip().is_unspecified() || remote.ip().is_multicast() || broadcast {
            return Err(Error::Unreachable);
        }
        let mapped =
            matches!(remote.ip(), IpAddr::V6(address) if address.to_ipv4_mapped().is_some());
        if remote.port() == 0 || mapped {
            return Err(Error::AddressNotAvailable);
        }
        if self.table.is_full() && self.expendable(AdmissionClass::Application).is_none() {
            return Err(Error::TooMany);
        }
        let port = local.map_or(0, |local| local.port());
        let flow = Flow::new((address, port), (remote.ip(), remote.port()));
        let (flow, hash, least) = match port {
            0 => self.choose_port(&flow)?,
            _ => self.check_port(flow)?,
        };
        if !self.make_room(AdmissionClass::Application) {
            return Err(Error::TooMany);
        }
        let parameters = self.parameters(&flow, options, least);
        let connection = Connection::open(&parameters, &mut self.shared.context());
        let entry = Entry::new(hash, Stage::Held, connection);
        let socket = self.table.insert(Slot::Connection(entry))?;
        self.flows.insert(hash, socket.index);
        self.update_schedule(socket.index);
        Ok(socket)
    }

    fn local_address(
        &self,
        local: Option<SocketAddr>,
        remote: SocketAddr,
    ) -> Result<IpAddr, Error> {
        let unspecified: IpAddr = match remote {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let wanted = local.map_or(unspecified, |local| local.ip());
        let own = self.addresses.iter().find(|&&own| {
            own == wanted || wanted == unspecified && own.is_ipv4() == unspecified.is_ipv4()
        });
        let same_family = wanted.is_ipv4() == remote.is_ipv4();
        own.copied().filter(|_| same_family).ok_or(Error::AddressNotAvailable)
    }

    fn choose_port(&mut self, flow: &Flow) -> Result<(Flow, u64, Option<Sequence>), Error> {
        let search = self.ports.search(flow);
        for _ in 0..self.ports.count() {
            let candidate = self.ports.step(search, flow);
            if let Ok(found) = self.check_port(candidate) {
                return Ok(found);
            }
        }
        Err(Error::NoPorts)
    }

    /// Whether a connection may begin with this four-tuple: it is unused, or used only by a
    /// connection in TIME_WAIT whose segments can be told apart from the new ones.
    fn check_port(&mut self, flow: Flow) -> Result<(Flow, u64, Option<Sequence>), Error> {
        let hash = flow.hash(self.keys.flow);
        if !self.is_mine(hash) {
            return Err(Error::AddressNotAvailable);
        }
        match self.find(&flow, hash) {
            None => Ok((flow, hash, None)),
            Some(Found::Connection(_)) => Err(Error::AddressInUse),
            Some(Found::TimeWait(record)) => {
                let least = self
                    .time_wait
                    .replaceable(record, self.shared.now)
                    .ok_or(Error::AddressInUse)?;
                self.forget_time_wait(record);
                self.shared.counters.time_wait_reused += 1;
                Ok((flow, hash, Some(least)))
            }
        }
    }
}
