//! PNG of charts, with the feature `reports`: the same drawings, with a font of the system.

use std::path::Path;

use crate::Failure;

/// Refuses at once what this program cannot do.
pub fn check(is_wanted: bool) -> Result<(), Failure> {
    if is_wanted && !cfg!(feature = "reports") {
        return Err(Failure::usage(
            "cannot write PNG",
            "this program was built without the feature 'reports'",
            "build with 'cargo build --release --features reports', or write the same charts with --svg or --html",
        ));
    }
    Ok(())
}

#[cfg(not(feature = "reports"))]
pub use without::Painter;

#[cfg(feature = "reports")]
pub use with::Painter;

#[cfg(not(feature = "reports"))]
mod without {
    use super::*;

    /// Cannot be made.
    pub enum Painter {}

    impl Painter {
        /// Says how to build what can.
        pub fn new(_font: Option<&Path>, _scale: u8) -> Result<Painter, Failure> {
            check(true)?;
            Err(Failure::new("cannot write PNG", "it was not built in", "write SVG with --svg"))
        }

        /// Never called.
        pub fn paint(&self, _svg: &str) -> Result<Vec<u8>, Failure> {
            match *self {}
        }
    }
}

#[cfg(feature = "reports")]
mod with {
    use std::sync::Arc;

    use resvg::tiny_skia::{Pixmap, Transform};
    use resvg::usvg::{Options, Tree, fontdb};

    use super::*;

    /// Makes pictures.
    pub struct Painter {
        options: Options<'static>,
        scale: f32,
    }

    impl Painter {
        /// With this font, or the system's; so many dots for each of the drawing's.
        pub fn new(font: Option<&Path>, scale: u8) -> Result<Painter, Failure> {
            let mut fonts = fontdb::Database::new();
            match font {
                Some(path) => fonts.load_font_file(path).map_err(|error| {
                    Failure::new(
                        format!("cannot read the font {}", path.display()),
                        error,
                        "name a file of TrueType or OpenType",
                    )
                })?,
                None => fonts.load_system_fonts(),
            }
            let family = family(&fonts).ok_or_else(|| {
                Failure::new(
                    "cannot write PNG",
                    "there is no font for the writing in it",
                    "install one (fonts-dejavu-core), name one with --font FILE, or write SVG",
                )
            })?;
            fonts.set_sans_serif_family(&family);
            let options = Options { font_family: family, fontdb: Arc::new(fonts), ..Options::default() };
            Ok(Painter { options, scale: f32::from(scale) })
        }

        /// A PNG of a drawing.
        pub fn paint(&self, svg: &str) -> Result<Vec<u8>, Failure> {
            let failed = |why: String| Failure::new("cannot make a PNG of a chart", why, "write it with --svg instead");
            let tree = Tree::from_str(svg, &self.options).map_err(|error| failed(error.to_string()))?;
            let size =
                tree.size().to_int_size().scale_by(self.scale).ok_or_else(|| failed("it is too large".to_owned()))?;
            let mut picture =
                Pixmap::new(size.width(), size.height()).ok_or_else(|| failed("it is too large".to_owned()))?;
            resvg::render(&tree, Transform::from_scale(self.scale, self.scale), &mut picture.as_mut());
            picture.encode_png().map_err(|error| failed(error.to_string()))
        }
    }

    /// The best font that there is: one of those that the drawings name, else any.
    fn family(fonts: &fontdb::Database) -> Option<String> {
        let names = |wanted: &str| fonts.faces().any(|face| face.families.iter().any(|(name, _)| name == wanted));
        let known = ["Helvetica", "Arial", "Liberation Sans", "DejaVu Sans", "Noto Sans"];
        let found = known.into_iter().find(|name| names(name)).map(str::to_owned);
        found.or_else(|| fonts.faces().find_map(|face| face.families.first().map(|(name, _)| name.clone())))
    }
}
