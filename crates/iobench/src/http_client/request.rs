//! A request that is sent many times, over either version of HTTP.

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{CONTENT_LENGTH, HOST, HeaderMap, HeaderName, HeaderValue, USER_AGENT};
use hyper::{Method, Request, Uri};

use crate::http_client::Version;
use crate::http_client::address::Url;

/// The parts of a request that do not depend on its URL.
#[derive(Debug, Clone, Default)]
pub(crate) struct Parts {
    pub(crate) method: Method,
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
    pub(crate) body: Bytes,
}

/// A request in the forms of both versions.
#[derive(Debug, Clone)]
pub(crate) struct Template {
    method: Method,
    body: Bytes,
    http1: (Uri, HeaderMap),
    http2: (Uri, HeaderMap),
}

impl Template {
    /// Fails if the URL and the headers make no request.
    pub(crate) fn new(url: &Url, parts: &Parts) -> Result<Template, String> {
        let mut headers = HeaderMap::new();
        for (name, value) in &parts.headers {
            headers.append(name, value.clone());
        }
        headers.entry(USER_AGENT).or_insert(HeaderValue::from_static("iobench"));
        let authority = match headers.remove(HOST) {
            Some(host) => host,
            None => HeaderValue::from_str(&url.authority).map_err(|error| error.to_string())?,
        };
        let name = authority.to_str().map_err(|error| format!("the header Host: {error}"))?;
        let absolute = format!("{}://{name}{}", url.scheme(), url.path);
        let absolute: Uri = absolute.parse().map_err(|error| format!("{absolute}: {error}"))?;
        let origin: Uri = url.path.parse().map_err(|error| format!("{}: {error}", url.path))?;
        let mut named = headers.clone();
        named.insert(HOST, authority);
        Ok(Template {
            method: parts.method.clone(),
            body: parts.body.clone(),
            http1: (origin, named),
            http2: (absolute, headers),
        })
    }

    pub(crate) fn body_bytes(&self) -> usize {
        self.body.len()
    }

    /// Returns whether a repeated request does no more than a single one (RFC 9110, section 9.2.2).
    pub(crate) fn is_idempotent(&self) -> bool {
        self.method.is_idempotent()
    }

    /// Makes one request.
    pub(crate) fn make(&self, version: Version) -> Request<Full<Bytes>> {
        let (uri, headers) = match version {
            Version::Http1 => &self.http1,
            Version::Http2 => &self.http2,
        };
        let mut request = Request::new(Full::new(self.body.clone()));
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = uri.clone();
        *request.headers_mut() = headers.clone();
        request
    }
}

/// Parses a header, `NAME: VALUE`.
pub(crate) fn parse_header(text: &str) -> Result<(HeaderName, HeaderValue), String> {
    let form = "write NAME: VALUE, such as 'Accept: text/html'";
    let (name, value) = text.split_once(':').ok_or_else(|| form.to_owned())?;
    let name: HeaderName = name.trim().parse().map_err(|error| format!("{error}; {form}"))?;
    let value = value.trim().parse().map_err(|error| format!("{error}; {form}"))?;
    if name == CONTENT_LENGTH {
        return Err("Content-Length follows from --body; leave it out".to_owned());
    }
    Ok((name, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_version_gets_its_form() {
        let url: Url = "http://h:81/a?b".parse().unwrap();
        let headers = ["Accept: x", "User-Agent: me"].map(|text| parse_header(text).unwrap());
        let parts = Parts { headers: headers.into(), ..Parts::default() };
        let template = Template::new(&url, &parts).unwrap();
        let first = template.make(Version::Http1);
        assert_eq!(first.uri(), "/a?b");
        assert_eq!(first.headers()[HOST], "h:81");
        assert_eq!(first.headers()["accept"], "x");
        assert_eq!(first.headers()[USER_AGENT], "me");
        let second = template.make(Version::Http2);
        assert_eq!(second.uri().to_string(), "http://h:81/a?b");
        assert!(!second.headers().contains_key(HOST));
    }

    #[test]
    fn a_host_header_replaces_the_name_of_the_url() {
        let headers = vec![parse_header("Host: other").unwrap()];
        let parts = Parts { headers, ..Parts::default() };
        let template = Template::new(&"http://127.0.0.1/".parse().unwrap(), &parts).unwrap();
        assert_eq!(template.make(Version::Http1).headers()[HOST], "other");
        assert_eq!(template.make(Version::Http2).uri().to_string(), "http://other/");
    }

    #[test]
    fn headers_need_a_name_and_a_value() {
        for wrong in ["", "x", ": x", "a b: c", "x: \u{7}"] {
            assert!(parse_header(wrong).unwrap_err().contains("NAME: VALUE"), "{wrong}");
        }
        assert!(parse_header("content-length: 3").unwrap_err().contains("--body"));
    }
}
