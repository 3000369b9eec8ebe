/** `listener-program.ts UID PORT`: listens on all addresses as a user, and sends a text to everyone who connects. */
import { createServer } from 'node:net'

const [, , uid, port] = process.argv
process.setuid!(Number(uid))
createServer((socket) => socket.on('error', () => {}).end('listening')).listen(Number(port), '0.0.0.0', () =>
  process.stdout.write('ready\n'),
)
