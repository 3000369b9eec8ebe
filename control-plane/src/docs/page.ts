/**
 * The API reference at /docs: Scalar, from its npm package, with everything served from here.
 *
 * Its package for Fastify is the only one that contains the browser bundle without the hundred packages it is built from.
 * Its plugin is not registered in the app, because its routes have no access rules and its page has an inline script,
 * which the content security policy does not allow. The bundle is taken from it at the first view of the page.
 */
import { createHash } from 'node:crypto'
import { promisify } from 'node:util'
import { gzip } from 'node:zlib'
import { fastify } from 'fastify'

/** All addresses are relative to the page, so that it also works behind a proxy that adds a prefix to paths. */
export const PAGE = `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>Warren sandbox API</title>
</head>
<body>
<div id="app"></div>
<noscript>This page needs JavaScript. The same information is in <a href="openapi.json">openapi.json</a>.</noscript>
<script src="docs/scalar.js"></script>
<script src="docs/start.js"></script>
</body>
</html>
`

/**
 * Turns off everything in Scalar that would contact another server: fonts, the proxy for requests, telemetry, the
 * assistant, the links to its hosted tools. The generated snippets are hidden, because the document has its own samples.
 */
const CONFIGURATION = {
  url: 'openapi.json',
  theme: 'default',
  withDefaultFonts: false,
  telemetry: false,
  proxyUrl: '',
  hideClientButton: true,
  showDeveloperTools: 'never',
  agent: { disabled: true },
  mcp: { disabled: true },
  hiddenClients: true,
  documentDownloadType: 'json',
  defaultOpenFirstTag: true,
  authentication: { preferredSecurityScheme: 'apiKey' },
}

/** The document does not know the address by which the reader reaches it, so the page states where requests are sent. */
export const START_SCRIPT = `Scalar.createApiReference('#app', {
  ...${JSON.stringify(CONFIGURATION)},
  servers: [{ url: new URL('.', location.href).href.replace(/\\/$/, '') }],
})
`

/**
 * Scripts only from here, requests only to here. Vue sets style attributes, and Scalar adds style elements, so inline
 * styles are allowed; they cannot load anything, because images and fonts come from here as well.
 */
export const CONTENT_POLICY = [
  "default-src 'none'",
  "script-src 'self'",
  "style-src 'unsafe-inline'",
  "img-src 'self' data: blob:",
  "font-src 'self' data:",
  "connect-src 'self'",
  "base-uri 'none'",
  "form-action 'none'",
  "frame-ancestors 'none'",
].join('; ')

export type Bundle = { plain: string; gzipped: Buffer; etag: string }

let loading: Promise<Bundle> | undefined

/** Loaded once. A failure is not kept: the next request tries again. */
export function loadBundle(): Promise<Bundle> {
  loading ??= readBundle().catch((error: unknown) => {
    loading = undefined
    throw error
  })
  return loading
}

async function readBundle(): Promise<Bundle> {
  const { default: plugin } = await import('@scalar/fastify-api-reference')
  const server = fastify()
  try {
    await server.register(plugin, { routePrefix: '/docs', configuration: { url: 'openapi.json' } })
    const { statusCode, payload: plain } = await server.inject('/docs/js/scalar.js')
    if (statusCode !== 200) throw new Error(`the package of the API reference responded with ${statusCode}`)
    const etag = `"${createHash('sha256').update(plain).digest('base64url').slice(0, 22)}"`
    return { plain, gzipped: await promisify(gzip)(plain, { level: 9 }), etag }
  } finally {
    await server.close()
  }
}
