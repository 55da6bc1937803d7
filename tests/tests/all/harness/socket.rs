//! HTTP written by hand, for requests that no HTTP client would send.

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use super::Server;

/// Opens a connection on which reads and writes time out after `patience`.
pub fn raw_socket(server: &Server, patience: Duration) -> TcpStream {
    let socket = TcpStream::connect(server.address()).unwrap();
    socket.set_read_timeout(Some(patience)).unwrap();
    socket.set_write_timeout(Some(patience)).unwrap();
    socket
}

/// Writes a complete POST request.
pub fn post_bytes(socket: &mut TcpStream, path: &str, body: &[u8]) {
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    );
    socket.write_all(head.as_bytes()).unwrap();
    socket.write_all(body).unwrap();
}
