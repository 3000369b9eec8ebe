/** Explains to a user why a server that the user has named could not be reached. */

type CodedError = Error & { code?: string }

const TEXTS: Record<string, (server: string) => string> = {
  ECONNREFUSED: () => 'connection refused',
  ECONNRESET: (server) => `the ${server} closed the connection`,
  ENOTFOUND: () => 'the host name was not found',
  EAI_AGAIN: () => 'the host name could not be resolved',
  EHOSTUNREACH: () => 'the host cannot be reached',
  ENETUNREACH: () => 'the network cannot be reached',
  ETIMEDOUT: () => 'the connection timed out',
  CERT_HAS_EXPIRED: () => 'the certificate has expired',
  DEPTH_ZERO_SELF_SIGNED_CERT: () => 'the certificate is self-signed',
  SELF_SIGNED_CERT_IN_CHAIN: () => 'the certificate is signed by an unknown authority',
  UNABLE_TO_VERIFY_LEAF_SIGNATURE: () => 'the certificate is signed by an unknown authority',
  ERR_TLS_CERT_ALTNAME_INVALID: () => 'the certificate is for another host name',
}

/** Messages of the system contain addresses, which the user is not told. `server`: what to call it. */
export function explainConnectionError(error: CodedError, server: string): string {
  const code = connectionErrorCode(error)
  const text = TEXTS[code]?.(server)
  if (text !== undefined) return text
  if (code === 'EPROTO' || code.startsWith('ERR_SSL_')) return 'the TLS handshake failed'
  return code.startsWith('HPE_') ? 'the response is not HTTP' : `the request failed (${code || error.name})`
}

/** Of a connection that was tried at several addresses, the code of the first. */
export function connectionErrorCode(error: CodedError): string {
  const [first] = error instanceof AggregateError ? (error.errors as CodedError[]) : []
  return error.code ?? first?.code ?? ''
}
