//! By which routers servers are reached: the arguments of all tools that connect.

use std::path::PathBuf;
use std::sync::Arc;

use aqueduct_node::Initiator;
use aqueduct_node::routes::Routing;
use clap::Args;

use crate::failure::Failure;

#[derive(Clone, Debug, Default, Args)]
pub struct Routes {
    /// A router that leads to a network, NET@GATEWAY or NET@GATEWAY:PORT, as of mount -o route;
    /// again for more. Servers there are HOST@NET
    #[arg(long, value_name = "ROUTE")]
    pub route: Vec<String>,
    /// The file of networks and routes [default: /etc/aqueduct/routes.toml, if it is there]
    #[arg(long, value_name = "FILE")]
    pub routes: Option<PathBuf>,
}

impl Routes {
    /// What they say.
    pub fn routing(&self) -> Result<Routing, Failure> {
        Ok(Routing::of_arguments(self.routes.as_deref(), &self.route)?)
    }

    /// Who connects by them.
    pub fn resolve(&self) -> Result<Option<Arc<Initiator>>, Failure> {
        Ok(self.routing()?.resolve()?)
    }
}
