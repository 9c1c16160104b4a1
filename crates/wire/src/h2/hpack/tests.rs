//! The examples of RFC 7541 appendix C, and what must be refused.

use super::{Decoder, Encoder, Indexing, Invalid};

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let digit = |ch: u8| (ch as char).to_digit(16).expect("a digit") as u8;
    digits.chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

fn decode(decoder: &mut Decoder, block: &[u8]) -> Result<String, Invalid> {
    let mut text = String::new();
    decoder.decode(block, |field| {
        let (name, value) = (field.name.escape_ascii(), field.value.escape_ascii());
        text += &format!("{name}: {value}\n");
    })?;
    Ok(text)
}

/// Blocks of one connection, one after the other, and the fields in them.
fn check(decoder: &mut Decoder, blocks: &[(&str, &str)]) {
    for (block, fields) in blocks {
        let fields: String = fields.split('|').map(|field| format!("{field}\n")).collect();
        assert_eq!(decode(decoder, &hex(block)), Ok(fields));
    }
}

#[test]
fn literals_of_c_2() {
    let custom = "400a 6375 7374 6f6d 2d6b 6579 0d63 7573 746f 6d2d 6865 6164 6572";
    check(&mut Decoder::default(), &[(custom, "custom-key: custom-header")]);
    check(
        &mut Decoder::default(),
        &[("040c 2f73 616d 706c 652f 7061 7468", ":path: /sample/path")],
    );
    let password = "1008 7061 7373 776f 7264 0673 6563 7265 74";
    check(&mut Decoder::default(), &[(password, "password: secret")]);
    check(&mut Decoder::default(), &[("82", ":method: GET")]);
}

const REQUESTS: [&str; 3] = [
    ":method: GET|:scheme: http|:path: /|:authority: www.example.com",
    ":method: GET|:scheme: http|:path: /|:authority: www.example.com|cache-control: no-cache",
    ":method: GET|:scheme: https|:path: /index.html|:authority: www.example.com|\
     custom-key: custom-value",
];

#[test]
fn requests_of_c_3_without_huffman() {
    let blocks = [
        "8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
        "8286 84be 5808 6e6f 2d63 6163 6865",
        "8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65",
    ];
    let cases: Vec<_> = blocks.into_iter().zip(REQUESTS).collect();
    check(&mut Decoder::default(), &cases);
}

#[test]
fn requests_of_c_4_with_huffman() {
    let blocks = [
        "8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff",
        "8286 84be 5886 a8eb 1064 9cbf",
        "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf",
    ];
    let cases: Vec<_> = blocks.into_iter().zip(REQUESTS).collect();
    check(&mut Decoder::default(), &cases);
}

const RESPONSES: [&str; 3] = [
    ":status: 302|cache-control: private|date: Mon, 21 Oct 2013 20:13:21 GMT|\
     location: https://www.example.com",
    ":status: 307|cache-control: private|date: Mon, 21 Oct 2013 20:13:21 GMT|\
     location: https://www.example.com",
    ":status: 200|cache-control: private|date: Mon, 21 Oct 2013 20:13:22 GMT|\
     location: https://www.example.com|content-encoding: gzip|\
     set-cookie: foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1",
];

#[test]
fn responses_of_c_5_and_c_6_with_eviction() {
    let plain = [
        "4803 3330 3258 0770 7269 7661 7465 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133
         2032 303a 3133 3a32 3120 474d 546e 1768 7474 7073 3a2f 2f77 7777 2e65 7861 6d70
         6c65 2e63 6f6d",
        "4803 3330 37c1 c0bf",
        "88c1 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3220 474d
         54c0 5a04 677a 6970 7738 666f 6f3d 4153 444a 4b48 514b 425a 584f 5157 454f 5049
         5541 5851 5745 4f49 553b 206d 6178 2d61 6765 3d33 3630 303b 2076 6572 7369 6f6e
         3d31",
    ];
    let huffman = [
        "4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6
         2d1b ff6e 919d 29ad 1718 63c7 8f0b 97c8 e9ae 82ae 43d3",
        "4883 640e ffc1 c0bf",
        "88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab
         77ad 94e7 821d d7f2 e6c7 b335 dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f
         9587 3160 65c0 03ed 4ee5 b106 3d50 07",
    ];
    for blocks in [plain, huffman] {
        let cases: Vec<_> = blocks.into_iter().zip(RESPONSES).collect();
        let mut decoder = Decoder::new(256);
        check(&mut decoder, &cases);
    }
}

#[test]
fn what_cannot_be_decompressed_is_refused() {
    for (block, why) in [
        ("80", "index 0"),
        ("be", "an index beyond both tables"),
        ("ff ff ff ff ff 0f", "an index of many bits"),
        ("7f", "an integer without its end"),
        ("00 ff ff ff ff ff ff 01", "a length of many bits"),
        ("40 03 61 62", "a string without its end"),
        ("40 01 61", "a name without its value"),
        ("00 81 ff 01 61", "padding of a whole byte"),
        ("82 20", "a change of size behind a field"),
        ("3f e2 1f", "a size above the limit"),
    ] {
        assert_eq!(decode(&mut Decoder::default(), &hex(block)), Err(Invalid), "{why}");
    }
}

#[test]
fn the_table_may_be_resized_between_blocks() {
    let mut decoder = Decoder::default();
    check(&mut decoder, &[("40 01 61 01 62", "a: b"), ("be", "a: b")]);
    assert_eq!(decode(&mut decoder, &hex("20 3f e1 1f")), Ok(String::new()));
    assert_eq!(decode(&mut decoder, &hex("be")), Err(Invalid));
}

#[test]
fn an_encoded_section_comes_back_and_shrinks() {
    let (mut encoder, mut decoder) = (Encoder::default(), Decoder::default());
    let mut lens = Vec::new();
    for round in 0..3 {
        let mut out = Vec::new();
        encoder.begin(&mut out);
        encoder.status(200, &mut out);
        encoder.status(599, &mut out);
        encoder.field(b"server", b"nginx", Indexing::Kept, &mut out);
        encoder.field(b"x-long", &[b'x'; 600], Indexing::Kept, &mut out);
        encoder.field(b"etag", b"\"1\"", Indexing::Once, &mut out);
        encoder.field(b"set-cookie", b"a=b", Indexing::Never, &mut out);
        encoder.field(b"x-added", b"\x00\xff", Indexing::Kept, &mut out);
        let expected = format!(
            ":status: 200\n:status: 599\nserver: nginx\nx-long: {}\netag: \\\"1\\\"\n\
             set-cookie: a=b\nx-added: \\x00\\xff\n",
            "x".repeat(600)
        );
        assert_eq!(decode(&mut decoder, &out), Ok(expected), "{round}");
        lens.push(out.len());
    }
    assert!(lens[1] < lens[0] && lens[1] == lens[2]);
}

#[test]
fn the_peer_decides_how_large_the_encoders_table_may_be() {
    let (mut encoder, mut decoder) = (Encoder::default(), Decoder::default());
    for sizes in [&[4096][..], &[0], &[100], &[0, 4096], &[30, 50]] {
        for size in sizes {
            encoder.peer_table_size(*size);
        }
        for _ in 0..2 {
            let mut out = Vec::new();
            encoder.begin(&mut out);
            encoder.field(b"server", b"nginx", Indexing::Kept, &mut out);
            assert_eq!(decode(&mut decoder, &out), Ok("server: nginx\n".to_owned()));
        }
    }
}
