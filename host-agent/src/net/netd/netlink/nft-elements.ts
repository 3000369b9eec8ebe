/**
 * Adds elements to sets and maps of a table in one transaction, directly over netlink: libnftables would read the whole
 * table first, which takes several times as long as the change.
 */
import { attribute, NLM_F, nested, type Request, textAttribute } from './message.ts'
import { NetlinkSocket } from './socket.ts'

const NETLINK_NETFILTER = 12
const SUBSYSTEM = 10
const NEW_ELEMENTS = (SUBSYSTEM << 8) | 12
const LIST = { TABLE: 1, SET: 2, ELEMENTS: 3 }
const ELEMENT = 1
const KEY = 1
const DATA = 2
const VALUE = 1
const FAMILIES = { ip: 2, netdev: 5 }
/** The resource of the messages that begin and end a transaction is the subsystem, in big-endian order. */
const BATCH_HEADER = Buffer.from([0, 0, 0, SUBSYSTEM])
const BATCH = { BEGIN: 16, END: 17 }

/** `value`: for maps only. `family`: of the table, `ip` unless stated. */
export type Element = { family?: keyof typeof FAMILIES; set: string; key: Buffer; value?: Buffer }

/** Adds all elements or none, in the namespace of this thread. */
export function addElements(table: string, elements: readonly Element[]): void {
  using socket = new NetlinkSocket(NETLINK_NETFILTER)
  socket.transact(`add elements to ${table}`, {
    begin: { type: BATCH.BEGIN, flags: 0, body: BATCH_HEADER },
    requests: elements.map((element) => addElement(table, element)),
    end: { type: BATCH.END, flags: 0, body: BATCH_HEADER },
  })
}

export const addElement = (table: string, { family = 'ip', set, key, value }: Element): Request => ({
  type: NEW_ELEMENTS,
  flags: NLM_F.CREATE | NLM_F.EXCL,
  body: Buffer.concat([
    // struct nfgenmsg: family, version, resource.
    Buffer.from([FAMILIES[family], 0, 0, 0]),
    textAttribute(LIST.TABLE, table),
    textAttribute(LIST.SET, set),
    nested(
      LIST.ELEMENTS,
      nested(
        ELEMENT,
        nested(KEY, attribute(VALUE, key)),
        ...(value === undefined ? [] : [nested(DATA, attribute(VALUE, value))]),
      ),
    ),
  ]),
})
