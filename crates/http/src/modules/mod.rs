//! The modules, in the order in which their handlers and filters run.

use std::marker::PhantomData;

use crate::module::{AnyModule, Entry, Module};

mod access;
mod addition;
mod auth_basic;
mod auth_request;
mod autoindex;
mod brotli;
mod brotli_static;
mod browser;
mod charset;
mod check;
mod coding;
mod dav;
mod empty_gif;
mod flv;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod geo;
mod gunzip;
pub mod gzip;
mod gzip_static;
mod headers;
mod health_check;
mod http2;
mod index;
mod limit_conn;
mod limit_req;
mod log;
mod map;
mod mirror;
mod mp4;
mod not_modified;
mod postpone;
mod proxy;
mod random_index;
mod range;
mod realip;
mod referer;
pub mod resolver;
mod rewrite;
mod secure_link;
mod split_clients;
mod ssi;
mod ssl;
mod static_coding;
mod static_files;
mod stub_status;
mod sub;
mod try_files;
mod tunnel;
mod upstream;
mod userid;
mod zstd;
mod zstd_static;

fn entry<M: Module>() -> Box<dyn AnyModule> {
    Box::new(Entry::<M>(PhantomData))
}

/// All modules of this build.
pub fn all() -> Vec<Box<dyn AnyModule>> {
    vec![
        entry::<crate::core::Core>(),
        entry::<http2::Http2>(),
        entry::<map::Map>(),
        entry::<resolver::Resolving>(),
        entry::<rewrite::Rewriting>(),
        entry::<upstream::Upstream>(),
        entry::<ssl::Ssl>(),
        // Variables.
        entry::<geo::Geo>(),
        entry::<split_clients::SplitClients>(),
        entry::<secure_link::SecureLink>(),
        entry::<referer::Referer>(),
        entry::<browser::Browser>(),
        // Preaccess.
        entry::<realip::RealIp>(),
        entry::<limit_req::LimitReq>(),
        entry::<limit_conn::LimitConn>(),
        // Access.
        entry::<access::Access>(),
        entry::<auth_basic::AuthBasic>(),
        entry::<auth_request::AuthRequest>(),
        entry::<try_files::TryFiles>(),
        entry::<mirror::Mirror>(),
        // Content, in the order of asking.
        entry::<proxy::Proxy>(),
        entry::<tunnel::Tunnel>(),
        entry::<health_check::HealthCheck>(),
        entry::<check::Check>(),
        entry::<random_index::RandomIndex>(),
        entry::<index::Index>(),
        entry::<autoindex::Autoindex>(),
        entry::<dav::Dav>(),
        entry::<zstd_static::ZstdStatic>(),
        entry::<brotli_static::BrotliStatic>(),
        entry::<gzip_static::GzipStatic>(),
        entry::<static_files::StaticFiles>(),
        entry::<stub_status::StubStatus>(),
        entry::<flv::Flv>(),
        entry::<mp4::Mp4>(),
        entry::<empty_gif::EmptyGif>(),
        // Filters, in the order of the response.
        entry::<not_modified::NotModified>(),
        entry::<headers::Headers>(),
        entry::<userid::UserId>(),
        entry::<gunzip::Gunzip>(),
        entry::<addition::Addition>(),
        entry::<sub::Sub>(),
        entry::<charset::Charset>(),
        entry::<ssi::Ssi>(),
        // Here bodies that hold other bodies become one.
        entry::<postpone::Postpone>(),
        // Compression, in the order of preference.
        entry::<zstd::Zstd>(),
        entry::<brotli::Brotli>(),
        entry::<gzip::Gzip>(),
        entry::<coding::Codings>(),
        // Must be the last filter: it cuts the body that is sent.
        entry::<range::Range>(),
        entry::<log::Log>(),
    ]
}
