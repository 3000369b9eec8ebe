/** What runs in a guest: text, because it is another process in another namespace. Each prints what it measured. */

/** `address hello bytes`: MB/s of so many bytes through one connection, after a TLS hello that is answered. */
export const POUR = `
const [host, hello, bytes] = process.argv.slice(1)
const socket = require('node:net').connect({ host, port: 443 })
const piece = Buffer.alloc(256 * 1024)
socket.once('data', () => {
  const startedAt = performance.now()
  let left = Number(bytes)
  const pour = () => {
    while (left > 0) { left -= piece.length; if (!socket.write(piece)) return void socket.once('drain', pour) }
    socket.end()
  }
  socket.on('close', () => console.log(Number(bytes) / 1e3 / (performance.now() - startedAt)))
  pour()
})
socket.write(hello, 'hex')
`

/** `name count`: milliseconds of as many questions for it, one after the other, as JSON. */
export const ASK = `
const [name, count] = process.argv.slice(1)
const resolver = new (require('node:dns').promises.Resolver)()
resolver.setServers(['169.254.1.1'])
;(async () => {
  const times = []
  for (let i = 0; i < Number(count); i++) {
    const startedAt = performance.now()
    await resolver.resolve4(name)
    times.push(performance.now() - startedAt)
  }
  console.log(JSON.stringify(times))
})()
`
