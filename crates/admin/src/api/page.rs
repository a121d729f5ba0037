//! The page for people: one document, which reads the API.

use super::problem;
use axum::body::Body;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

const PAGE: &str = include_str!("../page.html");
/// Its placeholder for the nonce of its script and style.
const NONCE: &str = "NONCE";

/// The page, which may run only its own script, and connect only to this interface (CSP Level 3).
pub(super) async fn shown() -> Response {
    let mut random = [0; 16];
    if let Err(error) = getrandom::fill(&mut random) {
        return problem(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string(), &[]);
    }
    let nonce = format!("{:032x}", u128::from_ne_bytes(random));
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    let fields = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CACHE_CONTROL, "no-store"),
        (header::CONTENT_SECURITY_POLICY, policy.as_str()),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    (fields, Body::from(PAGE.replace(NONCE, &nonce))).into_response()
}
