//! Stores the options of a connection in a third of the size of [`Options`].

use super::urgent::UrgentData;
use crate::config::{Congestion, Keepalive, Options};
use std::time::Duration;

/// The values of [`Options`]. Rarely used ones are on the heap, and only if they were changed.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) no_delay: bool,
    pub(super) quick_ack: bool,
    pub(super) linger_reset: bool,
    pub(super) congestion: Congestion,
    pub(super) send_buffer_bytes: u32,
    pub(super) receive_buffer_bytes: u32,
    rare: Option<Box<Rare>>,
}

#[derive(Debug, PartialEq, Eq)]
struct Rare {
    keepalive: Option<Keepalive>,
    user_timeout: Option<Duration>,
    send_low_water_bytes: u32,
    receive_low_water_bytes: u32,
    maximum_segment: Option<u16>,
    cork: bool,
    /// Not an option, but as rarely used.
    urgent: UrgentData,
}

/// The default values of rare options.
const USUAL: Rare = Rare {
    keepalive: None,
    user_timeout: None,
    send_low_water_bytes: 1,
    receive_low_water_bytes: 1,
    maximum_segment: None,
    cork: false,
    urgent: UrgentData::NONE,
};

impl Settings {
    pub(super) fn new(options: &Options) -> Settings {
        let rare = Rare {
            keepalive: options.keepalive,
            user_timeout: options.user_timeout,
            send_low_water_bytes: options.send_low_water_bytes,
            receive_low_water_bytes: options.receive_low_water_bytes,
            maximum_segment: options.maximum_segment,
            cork: options.cork,
            urgent: UrgentData::NONE,
        };
        Settings {
            no_delay: options.no_delay,
            quick_ack: options.quick_ack,
            linger_reset: options.linger_reset,
            congestion: options.congestion,
            send_buffer_bytes: options.send_buffer_bytes,
            receive_buffer_bytes: options.receive_buffer_bytes,
            rare: (rare != USUAL).then(|| Box::new(rare)),
        }
    }

    pub(super) fn options(&self) -> Options {
        let rare = self.rare();
        Options {
            no_delay: self.no_delay,
            quick_ack: self.quick_ack,
            keepalive: rare.keepalive,
            user_timeout: rare.user_timeout,
            send_buffer_bytes: self.send_buffer_bytes,
            receive_buffer_bytes: self.receive_buffer_bytes,
            send_low_water_bytes: rare.send_low_water_bytes,
            receive_low_water_bytes: rare.receive_low_water_bytes,
            congestion: self.congestion,
            linger_reset: self.linger_reset,
            maximum_segment: rare.maximum_segment,
            cork: rare.cork,
        }
    }

    /// Replaces the options.
    pub(super) fn change(&mut self, options: &Options) {
        let urgent = *self.urgent();
        *self = Settings::new(options);
        if urgent != UrgentData::NONE {
            *self.urgent_mut() = urgent;
        }
    }

    /// The state of urgent data.
    pub(super) fn urgent(&self) -> &UrgentData {
        &self.rare().urgent
    }

    pub(super) fn urgent_mut(&mut self) -> &mut UrgentData {
        &mut self.rare.get_or_insert_with(|| Box::new(USUAL)).urgent
    }

    fn rare(&self) -> &Rare {
        self.rare.as_deref().unwrap_or(&USUAL)
    }

    pub(super) fn keepalive(&self) -> Option<Keepalive> {
        self.rare().keepalive
    }

    pub(super) fn user_timeout(&self) -> Option<Duration> {
        self.rare().user_timeout
    }

    pub(super) fn send_low_water_bytes(&self) -> u32 {
        self.rare().send_low_water_bytes
    }

    pub(super) fn receive_low_water_bytes(&self) -> u32 {
        self.rare().receive_low_water_bytes
    }

    pub(super) fn cork(&self) -> bool {
        self.rare().cork
    }

    pub(super) fn maximum_segment(&self) -> Option<u16> {
        self.rare().maximum_segment
    }
}
