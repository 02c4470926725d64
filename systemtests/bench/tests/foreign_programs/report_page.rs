//! Tests of the page of `iobench report` in a browser without network.

use std::path::PathBuf;

use crate::browser::Browser;
use crate::sample;
use serde_json::{Value, json};
use systemtests_bench::{run, scratch_file, stderr};

/// A page on disk, removed at the end.
struct Page {
    path: PathBuf,
}

impl Page {
    fn of(documents: &[&Value]) -> Page {
        let files: Vec<PathBuf> = documents.iter().map(|_| scratch_file()).collect();
        for (file, document) in files.iter().zip(documents) {
            std::fs::write(file, document.to_string()).unwrap();
        }
        let path = scratch_file().with_extension("html");
        let mut arguments = vec!["report", "-o", path.to_str().unwrap()];
        arguments.extend(files.iter().map(|file| file.to_str().unwrap()));
        let output = run(&arguments);
        files.iter().for_each(|file| std::fs::remove_file(file).unwrap());
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        Page { path }
    }

    fn url(&self) -> String {
        format!("file://{}", self.path.display())
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Reads the figures of the page's table: a list for each row.
const TABLE: &str = "[...document.querySelectorAll('tbody tr')].map((row) => ({
    subject: row.querySelector('th').firstChild.textContent.trim(),
    invalid: row.classList.contains('invalid'),
    figures: Object.fromEntries([...row.querySelectorAll('td[data-value]')].map((cell) =>
        [cell.dataset.figure, Number(cell.dataset.value)])),
}))";

#[test]
fn figures_of_the_page_are_those_of_the_file() {
    let document = sample::open();
    let page = Page::of(&[&document]);
    let mut browser = Browser::start();
    browser.open(&page.url());
    let shown = browser.evaluate(TABLE);
    let (shown, rows) = (shown.as_array().unwrap(), document["results"].as_array().unwrap());
    assert_eq!(shown.len(), rows.len());
    for (shown, row) in shown.iter().zip(rows) {
        assert_eq!(shown["subject"], row["subject"]);
        assert_eq!(shown["invalid"], !row["valid"].as_bool().unwrap());
        let figures = &shown["figures"];
        for name in ["p1", "p25", "p50", "p75", "p99", "p999", "max"] {
            assert_eq!(figures[name].as_f64(), row["latency_us"][name].as_f64(), "{name}");
        }
        assert_eq!(figures["lag-p99"].as_f64(), row["send_lag_us"]["p99"].as_f64());
        assert_eq!(figures["rate"].as_f64(), row["throughput"].as_f64());
        assert_eq!(figures["cpu"].as_f64(), row["server_cpu_us"].as_f64());
        assert_eq!(figures["errors"].as_f64(), row["accounts"]["lost"].as_f64());
    }
    let embedded = browser.evaluate("document.getElementById('e1-data-1').textContent");
    let embedded: Value = serde_json::from_str(embedded.as_str().unwrap()).unwrap();
    assert!(embedded == document, "the embedded data is the file's");
    assert_eq!(browser.requested(), [page.url()], "nothing else is loaded");
    assert!(browser.complaints().is_empty(), "{:?}", browser.complaints());
}

/// Further columns of the table are reached by scrolling.
#[test]
fn the_first_figures_and_the_ratios_fit_into_1280_pixels() {
    let mut document = sample::compare();
    for row in document["results"].as_array_mut().unwrap() {
        for ratio in ["p50_ratio", "p99_ratio", "cpu_ratio", "cpu_both_ratio"] {
            row[ratio] = sample::interval(0.75);
        }
    }
    let page = Page::of(&[&document]);
    let mut browser = Browser::start();
    let size = json!({ "width": 1280, "height": 800, "deviceScaleFactor": 1, "mobile": false });
    browser.call("Emulation.setDeviceMetricsOverride", size);
    browser.open(&page.url());
    assert_eq!(browser.evaluate("document.documentElement.scrollWidth <= innerWidth"), true);
    for figure in ["p50", "p99", "rate", "cpu", "p50-ratio", "p99-ratio", "rate-ratio", "cpu-ratio"]
    {
        let right = format!(
            "document.querySelector('td[data-figure=\"{figure}\"]').getBoundingClientRect().right"
        );
        let right = browser.evaluate(&right).as_f64().unwrap();
        assert!(right <= 1280.0, "{figure} ends at {right}");
    }
}

#[test]
fn servers_are_switched_and_points_chosen() {
    let page = Page::of(&[&sample::open()]);
    let mut browser = Browser::start();
    browser.open(&page.url());
    let visible = |server: usize| {
        format!(
            "[...document.querySelectorAll('[data-series=\"{server}\"]')]
                .filter((mark) => mark.getClientRects().length > 0).length"
        )
    };
    let before = [visible(2), visible(4)].map(|count| browser.evaluate(&count).as_u64().unwrap());
    assert!(before.iter().all(|count| *count > 12), "{before:?}");
    let box_of_select = "document.querySelector('input[data-switch=\"2\"]')";
    browser.evaluate(&format!("{box_of_select}.click()"));
    assert_eq!(browser.evaluate(&visible(2)), 0, "select is off, marks and lines of the table");
    assert_eq!(browser.evaluate(&visible(4)), before[1], "epoll stays");
    // Also by keyboard.
    browser.evaluate(&format!("{box_of_select}.focus()"));
    for kind in ["keyDown", "keyUp"] {
        let key = json!({ "type": kind, "key": " ", "code": "Space", "text": " ",
                          "windowsVirtualKeyCode": 32 });
        browser.call("Input.dispatchKeyEvent", key);
    }
    assert_eq!(browser.evaluate(&visible(2)), before[0]);

    let shown = "[...document.querySelectorAll('#e1-latency .view')]
        .filter((view) => view.checkVisibility())
        .map((view) => view.querySelector('svg').getAttribute('aria-label'))";
    assert_eq!(
        browser.evaluate(shown),
        json!(["service time against connections, 2,000 requests/s"])
    );
    let choose = |name: &str, place: usize| {
        format!(
            "(() => {{ const choice =
                document.querySelector('#e1-latency select[data-choice=\"{name}\"]');
                choice.selectedIndex = {place};
                choice.dispatchEvent(new Event('change')); }})()"
        )
    };
    let first_tick = "[...document.querySelectorAll('#e1-latency .view')]
        .find((view) => view.checkVisibility()).querySelector('.tick').textContent";
    assert_ne!(browser.evaluate(first_tick), "0", "a logarithmic axis has no zero");
    browser.evaluate(&(choose("point", 2) + ";" + &choose("scale", 1)));
    assert_eq!(
        browser.evaluate(shown),
        json!(["service time against connections, 8,000 requests/s"])
    );
    assert_eq!(browser.evaluate(first_tick), "0", "a linear one begins with it");
    assert!(browser.complaints().is_empty(), "{:?}", browser.complaints());
}

#[test]
fn transports_have_maps_and_bars_that_are_switched() {
    let page = Page::of(&[&sample::transports()]);
    let mut browser = Browser::start();
    browser.open(&page.url());
    let count = |browser: &mut Browser, selector: &str| {
        browser.evaluate(&format!(
            "[...document.querySelectorAll('{selector}')]
                .filter((part) => part.getClientRects().length > 0).length"
        ))
    };
    // The cache line's eight bytes come first; both other transports have messages of 64.
    let choose = "(() => { const choice =
        document.querySelector('#e1-round-trip select[data-choice=\"point\"]');
        choice.selectedIndex = 1;
        choice.dispatchEvent(new Event('change')); })()";
    assert_eq!(count(&mut browser, "#e1-round-trip svg"), 1);
    browser.evaluate(choose);
    assert_eq!(count(&mut browser, "#e1-round-trip svg"), 2);
    assert_eq!(count(&mut browser, "#e1-one-way g"), 2);
    browser.evaluate("document.querySelector('input[data-switch=\"0\"]').click()");
    assert_eq!(count(&mut browser, "#e1-round-trip svg"), 1);
    assert_eq!(count(&mut browser, "#e1-one-way g"), 1);
    assert!(browser.complaints().is_empty(), "{:?}", browser.complaints());
}

#[test]
fn phones_dark_rooms_and_paper_are_served() {
    let documents = [sample::open(), sample::closed(), sample::compare(), sample::transports()];
    let page = Page::of(&documents.each_ref());
    let mut browser = Browser::start();
    let phone = json!({ "width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": true });
    browser.call("Emulation.setDeviceMetricsOverride", phone);
    browser.open(&page.url());
    let widths = browser.evaluate("[document.documentElement.scrollWidth, window.innerWidth]");
    assert_eq!(widths, json!([390, 390]), "the page is as wide as the phone");
    assert_eq!(browser.evaluate("document.querySelectorAll('.experiment').length"), 4);

    let colours = "[getComputedStyle(document.body).backgroundColor,
        getComputedStyle(document.body).color,
        getComputedStyle(document.querySelector('.plot .line')).stroke]";
    let mut in_scheme = |scheme: &str, media: &str| {
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        let emulated = json!({ "media": media, "features": features });
        browser.call("Emulation.setEmulatedMedia", emulated);
        browser.evaluate(colours).as_array().unwrap().clone()
    };
    let (light, dark) = (in_scheme("light", "screen"), in_scheme("dark", "screen"));
    for (light, dark) in light.iter().zip(&dark) {
        assert_ne!(light, dark);
    }
    let paper = in_scheme("dark", "print");
    assert_eq!(paper[0], "rgb(255, 255, 255)", "paper is white, whatever the screen is");
    assert!(browser.complaints().is_empty(), "{:?}", browser.complaints());
}

#[test]
fn hostile_names_are_only_text() {
    let name = "<script>window.broken = 1</script>\"'><img src=x onerror='window.broken = 1'>";
    let mut document = sample::open();
    for row in document["results"].as_array_mut().unwrap() {
        if row["subject"] == "select" {
            row["subject"] = json!(name);
            row["notes"] = json!([name]);
        }
    }
    for field in ["title", "source", "file"] {
        document["experiment"][field] = json!(format!("{name}</pre></title></style>"));
    }
    document["environment"]["cpu_model"] = json!(name);
    document["environment"]["command"] = json!([name]);
    let page = Page::of(&[&document]);
    let mut browser = Browser::start();
    browser.open(&page.url());
    assert_eq!(browser.evaluate("typeof window.broken"), "undefined");
    assert_eq!(browser.evaluate("document.querySelectorAll('img').length"), 0);
    let shown = browser.evaluate(TABLE);
    assert_eq!(shown[2]["subject"], name);
    let embedded = browser.evaluate("document.getElementById('e1-data-1').textContent");
    let embedded: Value = serde_json::from_str(embedded.as_str().unwrap()).unwrap();
    assert!(embedded == document, "the embedded data is the file's");
    assert_eq!(browser.requested(), [page.url()]);
    assert!(browser.complaints().is_empty(), "{:?}", browser.complaints());
}

#[test]
fn without_scripts_verdict_table_and_charts_are_there() {
    let page = Page::of(&[&sample::open()]);
    let mut browser = Browser::start();
    browser.call("Emulation.setScriptExecutionDisabled", json!({ "value": true }));
    browser.open(&page.url());
    let seen = browser.evaluate(
        "['.verdict', 'table', '#e1-load .view', '#e1-latency .view', '#e1-curve .view',
          '#e1-lag .view'].map((name) =>
            [...document.querySelectorAll(name)].filter((part) => part.checkVisibility()).length)",
    );
    assert_eq!(seen, json!([2, 1, 1, 1, 1, 1]), "one picture of each chart");
    let idle = browser.evaluate(
        "[...document.querySelectorAll('button, select, .key input')]
            .filter((control) => control.checkVisibility()).length",
    );
    assert_eq!(idle, 0, "what would do nothing is not offered");
}
