use super::*;

/// A SYN as Linux sends it, with a sequence number that is about to wrap.
const SYN: [u8; 40] = [
    0xc0, 0x01, 0x00, 0x50, 0xff, 0xff, 0xff, 0xfe, 0, 0, 0, 0, 0xa0, 0x02, 0xfa, 0xf0, 0, 0, 0, 0,
    2, 4, 0x05, 0xb4, 4, 2, 8, 10, 0x11, 0x22, 0x33, 0x44, 0, 0, 0, 0, 1, 3, 3, 7,
];

fn syn() -> TcpHeader {
    TcpHeader {
        source_port: 0xc001,
        destination_port: 80,
        sequence: Sequence(u32::MAX - 1),
        flags: Flags::SYN,
        window: 64240,
        options: Options {
            maximum_segment: Some(1460),
            window_scale: Some(7),
            sack_permitted: true,
            timestamps: Some(Timestamps { value: 0x1122_3344, echo: 0 }),
            ..Options::default()
        },
        ..TcpHeader::default()
    }
}

fn written(header: &TcpHeader) -> Vec<u8> {
    let mut out = vec![0xee; header.bytes()];
    header.write(&mut out);
    out
}

/// A segment without data, with these options and flags.
fn with_options(flags: Flags, options: &[u8]) -> Vec<u8> {
    assert_eq!(options.len() % 4, 0);
    let mut segment = written(&TcpHeader { flags, ..TcpHeader::default() });
    segment[12] = ((20 + options.len()) as u8 / 4) << 4;
    segment.extend_from_slice(options);
    segment
}

fn options_of(flags: Flags, options: &[u8]) -> Options {
    TcpHeader::parse(&with_options(flags, options)).expect("a valid header").0.options
}

#[test]
fn a_syn_is_read_and_written_byte_for_byte() {
    assert_eq!(TcpHeader::parse(&SYN), Ok((syn(), &[][..])));
    assert_eq!(written(&syn()), SYN);
}

#[test]
fn data_and_urgent_pointer_and_all_flags() {
    let mut segment = written(&TcpHeader {
        flags: Flags(0xff),
        urgent: 0x0102,
        acknowledgement: Sequence(3),
        ..TcpHeader::default()
    });
    segment.extend_from_slice(b"data");
    let (header, data) = TcpHeader::parse(&segment).expect("valid");
    assert_eq!((header.flags, header.urgent, data), (Flags(0xff), 0x0102, &b"data"[..]));
    assert_eq!(header.acknowledgement, Sequence(3));
}

#[test]
fn headers_that_are_cut_off_or_too_short() {
    for length in 0..SYN.len() {
        assert_eq!(TcpHeader::parse(&SYN[..length]), Err(WireError::Truncated), "{length}");
    }
    let mut short = SYN;
    for offset in 0..5 {
        short[12] = offset << 4;
        assert_eq!(TcpHeader::parse(&short), Err(WireError::Malformed("data offset")));
    }
}

#[test]
fn sack_blocks_wrap_and_are_counted() {
    let blocks = [
        SackBlock { start: Sequence(u32::MAX - 9), end: Sequence(10) },
        SackBlock { start: Sequence(20), end: Sequence(30) },
        SackBlock { start: Sequence(40), end: Sequence(50) },
        SackBlock { start: Sequence(60), end: Sequence(70) },
    ];
    for sack_count in 0..=4 {
        for timestamps in [None, Some(Timestamps { value: 1, echo: 2 })] {
            let options = Options { timestamps, sack: blocks, sack_count, ..Options::default() };
            let header = TcpHeader { flags: Flags::ACK, options, ..TcpHeader::default() };
            let bytes = written(&header);
            assert!(bytes.len() <= HEADER_BYTES_MAX);
            let (read, _) = TcpHeader::parse(&bytes).expect("valid");
            let room = if timestamps.is_some() { 3 } else { 4 };
            let expected = &blocks[..usize::from(sack_count).min(room)];
            assert_eq!(read.options.sack_blocks(), expected);
            assert_eq!(read.options.timestamps, timestamps);
        }
    }
}

#[test]
fn a_count_of_blocks_beyond_the_room_is_cut() {
    let options = Options { sack_count: 255, ..syn().options };
    let header = TcpHeader { options, ..syn() };
    let (read, _) = TcpHeader::parse(&written(&header)).map(|(h, d)| (h, d.len())).expect("valid");
    assert_eq!(read.options.sack_count, 2, "20 of 40 bytes are left, 4 of them for the kind");
}

#[test]
fn options_out_of_place_in_any_order_and_unknown_ones() {
    let options =
        options_of(Flags::SYN, &[30, 4, 9, 9, 3, 3, 9, 1, 253, 2, 4, 2, 2, 4, 5, 0xb4, 0, 3, 3, 1]);
    assert_eq!((options.maximum_segment, options.window_scale), (Some(1460), Some(9)));
    assert!(options.sack_permitted);
}

#[test]
fn what_follows_an_impossible_option_is_not_read() {
    let good = [3, 3, 9, 1];
    for bad in [
        [2, 0, 5, 180],
        [2, 1, 5, 180],
        [2, 3, 5, 1],
        [2, 40, 5, 180],
        [3, 4, 1, 1],
        [4, 3, 1, 1],
        [5, 2, 1, 1],
        [8, 4, 1, 1],
        [253, 1, 1, 1],
    ] {
        let options = options_of(Flags::SYN, &[good, bad, [2, 4, 5, 180]].concat());
        assert_eq!(options.window_scale, Some(9), "{bad:?}: what came before counts");
        assert_eq!(options.maximum_segment, None, "{bad:?}");
        assert!(!options.sack_permitted && options.sack_count == 0, "{bad:?}");
    }
}

#[test]
fn an_option_that_is_cut_off_is_not_read() {
    for cut in [[1, 1, 1, 2], [1, 1, 2, 4], [1, 2, 4, 5]] {
        let options = options_of(Flags::SYN, &[[3, 3, 9, 1], cut].concat());
        assert_eq!((options.window_scale, options.maximum_segment), (Some(9), None), "{cut:?}");
    }
}

#[test]
fn an_end_of_options_ends_them() {
    assert_eq!(options_of(Flags::SYN, &[0, 2, 4, 5, 180, 1, 1, 1]), Options::default());
}

#[test]
fn options_of_a_syn_do_not_count_elsewhere() {
    let options = options_of(Flags::ACK, &[2, 4, 5, 180, 4, 2, 3, 3, 7, 0, 0, 0]);
    assert_eq!(options, Options::default());
}

#[test]
fn a_shift_beyond_fourteen_is_fourteen() {
    assert_eq!(options_of(Flags::SYN, &[3, 3, 15, 0]).window_scale, Some(14));
    assert_eq!(options_of(Flags::SYN, &[3, 3, 255, 0]).window_scale, Some(14));
}

#[test]
fn timestamps_are_read_wherever_they_are() {
    let expected = Some(Timestamps { value: 1, echo: 2 });
    for options in [
        [1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2],
        [8, 10, 0, 0, 0, 1, 0, 0, 0, 2, 1, 1],
        [1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2, 0],
    ] {
        assert_eq!(options_of(Flags::ACK, &options).timestamps, expected);
    }
}
