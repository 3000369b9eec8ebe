/**
 * Keeps the native part of an HTTP/2 session until those of its streams are collected.
 *
 * Node counts the memory of a session and aborts the process if some is left when the session is collected. A stream
 * whose headers began and did not end holds such memory until the stream is collected, which can be later: after a
 * session is destroyed nothing refers to either. A guest can bring this about as often as it likes.
 */
import type { ClientHttp2Session, ClientHttp2Stream } from 'node:http2'

const held = new FinalizationRegistry<object>(() => {})

export function outliveStream(session: ClientHttp2Session, stream: ClientHttp2Stream): void {
  const [ofStream, ofSession] = [findHandle(stream), findHandle(session)]
  if (ofStream && ofSession) held.register(ofStream, ofSession)
}

/**
 * The native part, which has no public name. The version of Node is pinned, and hostile-guest.test.ts fails if this finds
 * nothing.
 */
function findHandle(owner: ClientHttp2Session | ClientHttp2Stream): object | undefined {
  const symbol = Object.getOwnPropertySymbols(owner).find(({ description }) => description === 'kHandle')
  return symbol && (owner as unknown as Record<symbol, object | undefined>)[symbol]
}
