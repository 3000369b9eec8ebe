//! The times that the agent reports for the traces of the operator.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod support;

use http::Request;
use serde_json::Value;
use support::{Client, frame, send_all, start_agent};

const TRACEPARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

#[tokio::test]
async fn a_traced_request_is_answered_with_the_times_of_its_steps() {
    let host = start_agent();
    let client = host.connect().await;

    let exec = traced(&client, "/exec", &frame(3, br#"{"cmd":"true"}"#)).await;
    let failed = traced(&client, "/exec", &frame(3, br#"{"cmd":""}"#)).await;

    let steps = exec["steps"].as_array().unwrap();
    let names: Vec<_> = steps.iter().map(|step| step["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["read command", "start program"]);
    let took = exec["took_us"].as_u64().unwrap();
    for step in steps {
        assert!(step["at_us"].as_u64().unwrap() + step["took_us"].as_u64().unwrap() <= took);
    }
    assert!(failed["took_us"].is_u64());
}

#[tokio::test]
async fn a_request_without_a_trace_is_not_measured() {
    let host = start_agent();
    let client = host.connect().await;

    let ready = client.call("GET", "/ready", "").await;

    assert!(!ready.head.headers().contains_key("warren-spans"));
}

async fn traced(client: &Client, path: &str, body: &bytes::Bytes) -> Value {
    let request = Request::post(format!("http://guest{path}")).header("traceparent", TRACEPARENT).body(()).unwrap();
    let (response, mut send) = client.send.clone().ready().await.unwrap().send_request(request, false).unwrap();
    send_all(&mut send, body.clone(), true).await.unwrap();
    let head = response.await.unwrap().into_parts().0;
    serde_json::from_str(head.headers["warren-spans"].to_str().unwrap()).unwrap()
}
