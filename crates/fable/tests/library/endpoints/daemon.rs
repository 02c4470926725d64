//! Tests of the connection to the name daemon: what the library sends, and how it handles a hostile
//! or dead daemon. No flow has to open for this.

use std::os::fd::OwnedFd;
use std::sync::mpsc;
use std::time::Duration;

use crate::endpoints::rig::{self, Deed, GUARD, TestDaemon};
use fable::protocol::{ToDaemon, ToProcess, VERSION};
use fable::{Access, Endpoint, Error, Kind, Trust};

/// Long enough for a busy machine to answer, short enough to wait for.
const SHORT: Duration = Duration::from_millis(300);

fn bytes(message: &ToProcess) -> Vec<u8> {
    serde_json::to_vec(message).unwrap()
}

fn welcome() -> ToProcess {
    ToProcess::Welcome { version: VERSION, host: "here".into() }
}

/// Returns an arbitrary descriptor.
fn descriptor() -> OwnedFd {
    fable::page::create().unwrap()
}

#[test]
fn a_name_is_registered_as_asked_and_given_up_with_its_endpoint() {
    let daemon = TestDaemon::start();
    let access = Access { users: vec![7], groups: vec![8, 9] };
    let kv = daemon.options().access(access.clone()).trust(Trust::Trusted);
    let kv = kv.register("fable://kv/1").unwrap();
    assert_eq!(kv.name().unwrap().to_string(), "fable://kv/1");
    let said = daemon.wait_to_hear("the name", |said| matches!(said, ToDaemon::Register { .. }));
    let ToDaemon::Register { access: told, trust, .. } = said else { unreachable!() };
    assert_eq!((told, trust), (access, Trust::Trusted));

    let error = daemon.options().register("fable://kv/1").unwrap_err();
    assert!(matches!(&error, Error::Refused { reason } if reason.contains("taken")), "{error}");

    let listener = kv.listen().unwrap();
    assert!(matches!(kv.listen(), Err(Error::Refused { .. })), "one listener at a time");
    drop(kv);
    assert!(matches!(listener.try_accept(), Err(Error::WouldBlock)), "the listener keeps the name");
    drop(listener);
    daemon.wait_to_hear("its end", |said| matches!(said, ToDaemon::Unregister { .. }));
    daemon.options().register("fable://kv/1").unwrap();
}

#[test]
fn without_a_daemon_the_error_says_what_to_do() {
    let options = Endpoint::options().socket("/nonexistent/fabled.sock");
    let error = options.clone().register("fable://kv").unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, Error::NoDaemon { .. }), "{text}");
    assert!(text.contains("/nonexistent/fabled.sock") && text.contains("`fabled`"), "{text}");
    let error = options.anonymous().connect("fable://kv").unwrap_err();
    assert!(matches!(error, Error::NoDaemon { .. }), "{error}");
}

#[test]
fn what_is_no_name_and_nobodys_name_are_refused() {
    let daemon = TestDaemon::start();
    assert!(matches!(daemon.options().register("kv"), Err(Error::BadName(_))));
    let anonymous = daemon.options().anonymous();
    assert!(matches!(anonymous.connect("http://kv"), Err(Error::BadName(_))));
    assert!(matches!(anonymous.listen(), Err(Error::Refused { .. })));
    let error = anonymous.connect("fable://nobody").unwrap_err();
    assert!(
        matches!(&error, Error::Refused { reason } if reason.contains("nobody has")),
        "{error}"
    );
}

#[test]
fn what_the_application_insists_on_is_asked_for() {
    let daemon = TestDaemon::start();
    let options = daemon.options().transport(Kind::Unix).trust(Trust::Trusted);
    let _ = options.anonymous().connect("fable://nobody");
    let asked = daemon.wait_to_hear("it", |said| matches!(said, ToDaemon::Connect { .. }));
    let ToDaemon::Connect { transport, trust, .. } = asked else { unreachable!() };
    assert_eq!((transport.as_deref(), trust), (Some("unix"), Trust::Trusted));
}

#[test]
fn a_daemon_that_says_nothing_costs_the_time_out() {
    for silent_from_the_start in [true, false] {
        let daemon = TestDaemon::with_whims(move |said| match said {
            ToDaemon::Hello { .. } if !silent_from_the_start => Deed::Serve,
            _ => Deed::Ignore,
        });
        let error = daemon.options().timeout(SHORT).register("fable://kv").unwrap_err();
        assert!(matches!(error, Error::TimedOut), "{error}");
        let anonymous = daemon.options().timeout(SHORT).anonymous();
        assert!(matches!(anonymous.connect("fable://kv"), Err(Error::TimedOut)));
    }
}

#[test]
fn a_daemon_that_goes_away_between_any_two_messages_is_an_error_at_once() {
    type Moment = fn(&ToDaemon) -> bool;
    let moments: [Moment; 3] = [
        |said| matches!(said, ToDaemon::Hello { .. }),
        |said| matches!(said, ToDaemon::Register { .. }),
        |said| matches!(said, ToDaemon::Connect { .. }),
    ];
    for moment in moments {
        let daemon = TestDaemon::with_whims(
            move |said| {
                if moment(said) { Deed::Close } else { Deed::Serve }
            },
        );
        // The endpoint's time-out is `GUARD`: an immediate answer must not wait for it.
        let outcome = daemon
            .options()
            .register("fable://kv")
            .and_then(|kv| kv.connect("fable://kv").map(drop));
        let error = outcome.unwrap_err();
        assert!(matches!(error, Error::NoDaemon { .. }), "{error}");
    }
}

#[test]
fn a_daemon_of_another_version_is_refused_with_both_numbers() {
    let daemon = TestDaemon::with_whims(|_| {
        let other = ToProcess::Welcome { version: VERSION + 1, host: "here".into() };
        Deed::Send(vec![(bytes(&other), vec![])])
    });
    let text = daemon.options().register("fable://kv").unwrap_err().to_string();
    assert!(text.contains(&format!("version {}", VERSION + 1)), "{text}");
}

#[test]
fn packets_that_break_the_rules_end_the_connection() {
    let registered =
        |request| ToProcess::Registered { request, name: "fable://kv".parse().unwrap() };
    let connected = |request| ToProcess::Connected {
        request,
        flow: fable::FlowId(1),
        name: "fable://kv".parse().unwrap(),
        peer: rig::somebody(),
        transport: "mempipe-futex-safe".into(),
        reason: String::new(),
    };
    type Bad = Vec<(Vec<u8>, Vec<OwnedFd>)>;
    let bad: Vec<Box<dyn Fn() -> Bad + Send>> = vec![
        Box::new(|| vec![(b"no JSON at all".to_vec(), vec![])]),
        Box::new(|| vec![(br#"{"say":"something new"}"#.to_vec(), vec![])]),
        Box::new(|| vec![(br#"{"say":"registered","request":-1}"#.to_vec(), vec![])]),
        Box::new(move || vec![(bytes(&registered(1)), vec![descriptor()])]),
        Box::new(move || vec![(bytes(&connected(1)), vec![])]),
        Box::new(move || vec![(bytes(&connected(1)), vec![descriptor()])]),
        Box::new(move || vec![(bytes(&connected(1)), (0..8).map(|_| descriptor()).collect())]),
        Box::new(move || {
            let mut deep = b"[".repeat(100_000);
            deep.extend(b"]".repeat(20_000));
            vec![(deep, vec![])]
        }),
    ];
    for bad in bad {
        let daemon = TestDaemon::with_whims(move |said| match said {
            ToDaemon::Register { .. } | ToDaemon::Connect { .. } => Deed::Send(bad()),
            _ => Deed::Serve,
        });
        let error = daemon.options().register("fable://kv").unwrap_err();
        assert!(matches!(error, Error::NoDaemon { .. }), "{error}");
        assert!(error.to_string().contains("refused"), "{error}");
    }
}

#[test]
fn answers_that_do_not_fit_are_refused() {
    let daemon = TestDaemon::with_whims(|said| match said {
        ToDaemon::Register { request, .. } => {
            let page = descriptor();
            let elsewhere = ToProcess::Elsewhere {
                request: *request,
                flow: fable::FlowId(1),
                name: "fable://kv".parse().unwrap(),
                peer: rig::somebody(),
                addresses: vec![],
                ticket: "ticket".into(),
                protected: false,
            };
            Deed::Send(vec![(bytes(&elsewhere), vec![page])])
        }
        ToDaemon::Connect { request, name, .. } => {
            let answer = ToProcess::Registered { request: *request, name: name.clone() };
            Deed::Send(vec![(bytes(&answer), vec![])])
        }
        _ => Deed::Serve,
    });
    for outcome in [
        daemon.options().register("fable://kv").map(drop),
        daemon.options().anonymous().connect("fable://kv").map(drop),
    ] {
        let error = outcome.unwrap_err();
        assert!(matches!(&error, Error::Refused { reason } if reason.contains("fit")), "{error}");
    }
}

#[test]
fn another_owner_than_the_required_one_is_an_error_of_its_own() {
    let is_other = |error: &Error, wanted: [u32; 2]| match error {
        Error::OtherOwner { expected, found, .. } => [*expected, *found] == wanted,
        _ => false,
    };
    // A daemon that knows nothing of it: what it answers is checked. Its peers are root's.
    let daemon = TestDaemon::start();
    let endpoint = daemon.options().register("fable://kv/1").unwrap();
    let listener = endpoint.listen().unwrap();
    let error = daemon.options().owner(7).anonymous().connect("fable://kv/1").unwrap_err();
    assert!(is_other(&error, [7, 0]), "{error}");
    assert!(error.to_string().contains("fable ls"), "{error}");
    daemon.wait_to_hear("the flow's end", |said| matches!(said, ToDaemon::Ended { .. }));
    let accept = std::thread::spawn(move || listener.accept_timeout(rig::GUARD).map(drop));
    let flow = daemon.options().owner(0).anonymous().connect("fable://kv/1").unwrap();
    drop(flow);
    let _ = accept.join().unwrap();
    // One that refuses.
    let daemon = TestDaemon::with_whims(|said| match said {
        ToDaemon::Connect { request, name, owner: Some(7), .. } => {
            let (request, name) = (*request, name.clone());
            let refused = ToProcess::OtherOwner { request, name, owner: 8 };
            Deed::Send(vec![(bytes(&refused), vec![])])
        }
        _ => Deed::Serve,
    });
    let error = daemon.options().owner(7).anonymous().connect("fable://kv/1").unwrap_err();
    assert!(is_other(&error, [7, 8]), "{error}");
}

#[test]
fn what_nobody_asked_for_is_passed_over() {
    let daemon = TestDaemon::with_whims(|said| match said {
        ToDaemon::Hello { .. } => {
            let flow = fable::FlowId(77);
            let refused = ToProcess::Refused { request: 4711, reason: "no".into() };
            let order = ToProcess::Move {
                flow,
                transport: "unix".into(),
                reason: "so".into(),
                sequence: None,
                epoch: None,
            };
            let protect = ToProcess::Protect { flow, protected: true };
            let incoming = ToProcess::Incoming {
                flow,
                name: "fable://unknown".parse().unwrap(),
                peer: rig::somebody(),
                trust: Trust::Untrusted,
                local: true,
                protected: false,
                transport: "carrier-pigeon".into(),
                reason: String::new(),
            };
            Deed::Send(vec![
                (bytes(&welcome()), vec![]),
                (bytes(&welcome()), vec![]),
                (bytes(&refused), vec![]),
                (bytes(&order), vec![]),
                (bytes(&protect), vec![]),
                (bytes(&incoming), vec![descriptor(), descriptor()]),
            ])
        }
        _ => Deed::Serve,
    });
    let _kv = daemon.options().register("fable://kv").unwrap();
    let said = daemon.wait_to_hear("it", |said| matches!(said, ToDaemon::Ended { .. }));
    let ToDaemon::Ended { reason, .. } = said else { unreachable!() };
    assert_eq!(reason, "the name's owner does not listen");
}

#[test]
fn names_are_registered_with_a_daemon_that_comes_back() {
    let first = TestDaemon::start();
    let path = first.path().to_owned();
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let kv = first.options().register("fable://kv").unwrap();
    let other = first.options().register("fable://other").unwrap();
    let listener = kv.listen().unwrap();
    drop(first);
    assert!(matches!(listener.try_accept(), Err(Error::WouldBlock)), "there is just no daemon");

    // The first daemon removed the directory.
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let second = TestDaemon::at(&path, |said| match said {
        // Another process has registered the name first.
        ToDaemon::Register { request, name, .. } if name.to_string() == "fable://kv" => {
            let refused = ToProcess::Refused { request: *request, reason: "too late".into() };
            Deed::Send(vec![(bytes(&refused), vec![])])
        }
        _ => Deed::Serve,
    });
    second.wait_to_hear(
        "the other name",
        |said| matches!(said, ToDaemon::Register { name, .. } if name == other.name().unwrap()),
    );
    let error = listener.accept_timeout(GUARD).unwrap_err();
    assert!(matches!(&error, Error::Refused { reason } if reason.contains("too late")), "{error}");
    assert!(matches!(kv.listen(), Err(Error::Refused { .. })), "the name is lost");
    drop(second);
    std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
}

#[test]
fn a_late_registration_is_given_back() {
    let (give_up, given_up) = mpsc::channel();
    let daemon = TestDaemon::with_whims(move |said| match said {
        ToDaemon::Register { request, name, .. } if name.to_string() == "fable://late" => {
            // Answers only after the caller has given up.
            let _ = given_up.recv_timeout(GUARD);
            let late = ToProcess::Registered { request: *request, name: name.clone() };
            Deed::Send(vec![(bytes(&late), vec![])])
        }
        _ => Deed::Serve,
    });
    // Keeps the connection in use.
    let keeper = daemon.options().timeout(GUARD).register("fable://keeper").unwrap();
    let error = daemon.options().timeout(SHORT).register("fable://late").unwrap_err();
    give_up.send(()).unwrap();
    assert!(matches!(error, Error::TimedOut), "{error}");
    daemon.wait_to_hear(
        "that it is not wanted any more",
        |said| matches!(said, ToDaemon::Unregister { name } if name.to_string() == "fable://late"),
    );
    drop(keeper);
}

#[test]
fn a_forked_child_neither_uses_nor_ends_its_parents_names() {
    let daemon = TestDaemon::start();
    let kv = daemon.options().register("fable://kv").unwrap();
    let listener = kv.listen().unwrap();
    // SAFETY: the child calls nothing that needs the parent's other threads, and ends by _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let refused = matches!(kv.connect("fable://kv"), Err(Error::Forked))
            && matches!(listener.try_accept(), Err(Error::Forked))
            && matches!(kv.listen(), Err(Error::Forked));
        drop(listener);
        drop(kv);
        // SAFETY: ends the child without running destructors that belong to the parent.
        unsafe { libc::_exit(i32::from(!refused)) };
    }
    let mut status = 0;
    // SAFETY: the status outlives the call.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "{status}");
    assert!(matches!(listener.try_accept(), Err(Error::WouldBlock)));
    daemon.options().register("fable://second").unwrap();
    let told = daemon.heard();
    assert!(!told.iter().any(|said| {
        matches!(said, ToDaemon::Unregister { name } if name.to_string() == "fable://kv")
    }));
}
