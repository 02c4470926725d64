//! Runs one of the two processes of a measurement, with a transport of `fable` or a baseline.

use fable::transport::{self, Direction, Offer, PathOptions, Record, Transport};
use fable::{Kind, TransportError};
use ipcload::{End, Invitation, Load, TIME_LIMIT};

use crate::cli::ipc::IpcEndArgs;
use crate::error::{Error, Result};
use crate::ipc::baseline::{Baseline, BaselineEnd};
use crate::ipc::carrier::Carrier;
use crate::ipc::flow::FlowEnd;
use crate::ipc::loops::Loop;
use crate::serve::inherited;

/// The largest ring that `--ring-bytes` takes.
const RING_BYTES_MAX: usize = 1 << 30;

/// Measures in this process, or joins a process that measures.
pub(crate) fn run(arguments: &IpcEndArgs) -> Result<()> {
    let IpcEndArgs { transport, flow, ring_bytes, load } = arguments;
    if let Some(baseline) = Baseline::named(transport) {
        return run_baseline(baseline, load);
    }
    if let Some(one) = Loop::named(transport) {
        let inherited = load.join.as_deref().map(descriptors).transpose()?;
        return Ok(one.run(load, inherited)?);
    }
    let [carrier] = Carrier::named(transport)[..] else {
        let what = format!("`{transport}` is not the full name of a transport");
        return Err(Error::setup(what, "run `iobench ipc`, which starts this command itself"));
    };
    let (kind, options) = (carrier.kind, carrier.path_options(*ring_bytes));
    let Some(join) = &load.join else {
        match flow {
            true => {
                ipcload::run_measuring_process(load, || FlowEnd::create(kind, options, load.batch))
            }
            false => {
                ipcload::run_measuring_process(load, || FableEnd::create(kind, options, load.batch))
            }
        }
        return Ok(());
    };
    let descriptors = descriptors(join)?;
    if *flow {
        ipcload::run_partner_process(load, || {
            FlowEnd::open(kind, descriptors, options, load.batch)
        })?;
    } else {
        let offer = Offer { kind, descriptors };
        ipcload::run_partner_process(load, || FableEnd::open(offer, options, load.batch))?;
    }
    Ok(())
}

fn run_baseline(baseline: Baseline, load: &Load) -> Result<()> {
    let Some(join) = &load.join else {
        ipcload::run_measuring_process(load, || BaselineEnd::create(baseline, load));
        return Ok(());
    };
    let descriptors = descriptors(join)?;
    ipcload::run_partner_process(load, || BaselineEnd::open(baseline, descriptors, load))?;
    Ok(())
}

fn descriptors(join: &str) -> Result<Vec<std::os::fd::OwnedFd>> {
    let numbers = join.split(',').filter(|number| !number.is_empty());
    numbers.map(|number| inherited(number.parse().unwrap_or(-1))).collect()
}

struct FableEnd(Box<dyn Transport>);

impl FableEnd {
    fn create(
        kind: Kind,
        options: PathOptions,
        batch: u32,
    ) -> ipcload::Result<(FableEnd, Invitation)> {
        let (mut transport, offer) = transport::create(kind, options).map_err(transport_error)?;
        transport.set_batch(batch);
        Ok((FableEnd(transport), Invitation::by_numbers(offer.descriptors)))
    }

    fn open(offer: Offer, options: PathOptions, batch: u32) -> ipcload::Result<FableEnd> {
        // The partner has chosen the rings' size.
        let options = PathOptions { ring_bytes: RING_BYTES_MAX, ..options };
        let mut transport = transport::open_within(offer, options).map_err(transport_error)?;
        transport.set_batch(batch);
        Ok(FableEnd(transport))
    }
}

fn transport_error(error: TransportError) -> ipcload::Error {
    ipcload::Error::transport(error)
}

impl End for FableEnd {
    #[inline]
    fn send(&mut self, bytes: usize, fill: impl Fn(&mut [u8])) -> ipcload::Result<bool> {
        let transport = &mut self.0;
        let mut slot = transport.acquire_write(bytes).map_err(transport_error)?;
        if slot.is_none() {
            transport.wait(Direction::Write, Some(TIME_LIMIT)).map_err(transport_error)?;
            slot = transport.acquire_write(bytes).map_err(transport_error)?;
        }
        let Some(mut slot) = slot else { return Ok(false) };
        fill(&mut slot[..bytes]);
        transport.commit(slot, bytes, Record::Data).map_err(transport_error)?;
        Ok(true)
    }

    #[inline]
    fn flush(&mut self) -> ipcload::Result<bool> {
        if self.0.flush().map_err(transport_error)? {
            return Ok(true);
        }
        self.0.wait(Direction::Write, Some(TIME_LIMIT)).map_err(transport_error)?;
        self.0.flush().map_err(transport_error)
    }

    #[inline]
    fn receive(&mut self, look: impl FnOnce(&[u8])) -> ipcload::Result<bool> {
        let transport = &mut self.0;
        let mut slot = transport.acquire_read().map_err(transport_error)?;
        if slot.is_none() {
            transport.wait(Direction::Read, Some(TIME_LIMIT)).map_err(transport_error)?;
            slot = transport.acquire_read().map_err(transport_error)?;
        }
        let Some(slot) = slot else { return Ok(false) };
        look(&slot);
        transport.release(slot);
        Ok(true)
    }
}
