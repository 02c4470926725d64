//! Tests groups of tasks.

use crate::common::{limited, runtime, within};
use megapipe::DriverChoice;
use megapipe_rt::{JoinError, TaskGroup, sleep, sleep_until, spawn_blocking, spawn_on, yield_now};
use std::cell::{Cell, RefCell};
use std::future::pending;
use std::rc::Rc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

on_both_drivers!(
    results_come_in_the_order_of_the_ends,
    panics_are_reported_and_end_one_task,
    dropping_a_group_drops_its_tasks,
    the_end_of_a_group_waits_for_every_drop,
    join_all_ends_the_others_at_the_first_failure,
    tasks_of_other_threads_are_members,
    a_dropped_next_loses_no_result,
    a_task_may_start_others_of_its_group,
);

/// Counts the values that exist.
#[derive(Clone, Default)]
struct Alive(Rc<Cell<usize>>);

struct Counted(Alive);

impl Alive {
    fn one(&self) -> Counted {
        self.0.set(self.0.get() + 1);
        Counted(self.clone())
    }

    fn count(&self) -> usize {
        self.0.get()
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.0.set(self.0.count() - 1);
    }
}

fn results_come_in_the_order_of_the_ends(driver: DriverChoice) {
    let runtime = runtime(driver, 1);
    within(&runtime, async {
        let mut group = TaskGroup::new();
        assert!(group.next().await.is_none());
        let began = Instant::now();
        for ms in [40, 10, 30, 20, 0] {
            group.spawn(async move {
                sleep_until(began + Duration::from_millis(ms)).await;
                ms
            });
        }
        assert_eq!(group.len(), 5);
        let mut order = Vec::new();
        while let Some(result) = group.next().await {
            order.push(result.unwrap());
        }
        assert_eq!(order, [0, 10, 20, 30, 40]);
        assert!(group.is_empty());
        // It can be filled again, also while results wait.
        for number in 0..1000 {
            group.spawn(async move { number });
            yield_now().await;
        }
        assert_eq!(group.join_all().await.unwrap(), (0..1000).collect::<Vec<_>>());
    });
}

fn panics_are_reported_and_end_one_task(driver: DriverChoice) {
    let runtime = runtime(driver, 1);
    within(&runtime, async {
        let mut group = TaskGroup::new();
        group.spawn(async { panic!("in the group") });
        group.spawn(async {
            sleep(Duration::from_millis(5)).await;
            7
        });
        let error = group.next().await.unwrap().unwrap_err();
        assert!(error.to_string().contains("in the group"), "{error}");
        assert_eq!(group.next().await.unwrap().unwrap(), 7);
    });
}

fn dropping_a_group_drops_its_tasks(driver: DriverChoice) {
    let runtime = runtime(driver, 1);
    within(&runtime, async {
        let alive = Alive::default();
        let mut group = TaskGroup::new();
        for number in 0..10 {
            let counted = alive.one();
            group.spawn(async move {
                let _counted = counted;
                if number % 2 == 0 {
                    pending::<()>().await;
                }
            });
        }
        yield_now().await;
        drop(group);
        // The next turn drops them.
        while alive.count() > 0 {
            yield_now().await;
        }
    });
}

fn the_end_of_a_group_waits_for_every_drop(driver: DriverChoice) {
    let runtime = runtime(driver, 1);
    within(&runtime, async {
        for polled in [false, true] {
            let alive = Alive::default();
            let mut group = TaskGroup::new();
            for _ in 0..10 {
                let counted = alive.one();
                group.spawn(async move {
                    let _counted = counted;
                    pending::<()>().await;
                });
            }
            if polled {
                yield_now().await;
                assert!(limited(1, group.next()).await.is_none());
            }
            assert_eq!(alive.count(), 10);
            group.end().await;
            assert_eq!(alive.count(), 0);
        }
    });
}

fn join_all_ends_the_others_at_the_first_failure(driver: DriverChoice) {
    let runtime = runtime(driver, 1);
    within(&runtime, async {
        let alive = Alive::default();
        let mut group = TaskGroup::new();
        for number in 0..10 {
            let counted = alive.one();
            group.spawn(async move {
                let _counted = counted;
                yield_now().await;
                assert_ne!(number, 5, "the sixth");
                pending::<()>().await;
            });
        }
        let error = group.join_all().await.unwrap_err();
        assert!(error.to_string().contains("the sixth"), "{error}");
        assert_eq!(alive.count(), 0);
    });
}

fn tasks_of_other_threads_are_members(driver: DriverChoice) {
    let runtime = runtime(driver, 3);
    within(&runtime, async {
        let mut group = TaskGroup::new();
        for number in 0..300 {
            match number % 4 {
                3 => group.add(spawn_blocking(move || number)),
                core => group.add(spawn_on(core, move || async move { number })),
            }
        }
        let mut all = group.join_all().await.unwrap();
        all.sort_unstable();
        assert_eq!(all, (0..300).collect::<Vec<_>>());
        // A task of another core is dropped there, before the end of the group.
        let (sender, dropped) = mpsc::channel::<()>();
        let mut group = TaskGroup::new();
        group.add(spawn_on(1, || async move {
            let _sender = sender;
            pending::<()>().await;
        }));
        group.end().await;
        assert_eq!(dropped.try_recv(), Err(mpsc::TryRecvError::Disconnected));
    });
}

fn a_dropped_next_loses_no_result(driver: DriverChoice) {
    let runtime = runtime(driver, 2);
    within(&runtime, async {
        let mut group = TaskGroup::new();
        for number in 0..200 {
            group.add(spawn_on(number % 2, move || async move {
                yield_now().await;
                number
            }));
        }
        let (mut all, mut dropped) = (Vec::new(), 0);
        loop {
            match limited(1, group.next()).await {
                Some(Some(result)) => all.push(result.unwrap()),
                Some(None) => break,
                None => {
                    dropped += 1;
                    yield_now().await;
                }
            }
        }
        all.sort_unstable();
        assert_eq!(all, (0..200).collect::<Vec<_>>());
        assert!(dropped > 0);
    });
}

fn a_task_may_start_others_of_its_group(driver: DriverChoice) {
    let runtime = runtime(driver, 1);
    within(&runtime, async {
        let group = Rc::new(RefCell::new(TaskGroup::new()));
        let inner = Rc::clone(&group);
        group.borrow_mut().spawn(async move {
            inner.borrow_mut().spawn(async { "child" });
            "parent"
        });
        yield_now().await;
        yield_now().await;
        let mut taken = group.take();
        assert_eq!(taken.next().await.unwrap().unwrap(), "parent");
        assert_eq!(taken.next().await.unwrap().unwrap(), "child");
        taken.spawn(async { "aborted" });
        taken.abort_all();
        assert!(matches!(taken.next().await, Some(Err(JoinError::Cancelled))));
    });
}
