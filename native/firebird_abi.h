/* The engine's interfaces as this plugin sees them, written out by hand.
 *
 * Source: FirebirdInterface.idl of Firebird 4.0 and 5.0 (identical where this file speaks).
 * An interface is a pointer to {reserved, vtable}; a vtable starts with {reserved, version}
 * and lists the methods of its ancestors first. All calls use the C convention. A version
 * counts the layers of methods: Versioned 1, then one more for each block of methods that
 * an interface or a later engine adds. Methods past the version that the other side tells
 * must not be called; methods that are never called here are `fbi_unused`.
 *
 * What the plugin implements: PluginFactory 2, PluginModule 3, ReplicatedSession 4,
 * ReplicatedTransaction 3. What it calls: the rest.
 */
#ifndef FIREBIRD_CDC_FIREBIRD_ABI_H
#define FIREBIRD_CDC_FIREBIRD_ABI_H

#include <stdint.h>

typedef unsigned char fbi_bool; /* FB_BOOLEAN: 0 or 1 */
typedef void (*fbi_unused)(void);

#define FBI_HEAD(vtable_type)                                                                      \
    void *reserved;                                                                                \
    const struct vtable_type *vt
#define FBI_VT_HEAD                                                                                \
    void *reserved;                                                                                \
    uintptr_t version
#define FBI_VT_REFCOUNTED(self_type)                                                               \
    FBI_VT_HEAD;                                                                                   \
    void (*add_ref)(struct self_type *);                                                           \
    int (*release)(struct self_type *)

enum { /* SQL type codes as ReplicatedField.getType and descriptors give them (sqlda_pub.h) */
       FBI_SQL_VARYING = 448,
       FBI_SQL_TEXT = 452,
       FBI_SQL_DOUBLE = 480,
       FBI_SQL_FLOAT = 482,
       FBI_SQL_LONG = 496,
       FBI_SQL_SHORT = 500,
       FBI_SQL_TIMESTAMP = 510,
       FBI_SQL_BLOB = 520,
       FBI_SQL_D_FLOAT = 530,
       FBI_SQL_ARRAY = 540,
       FBI_SQL_TYPE_TIME = 560,
       FBI_SQL_TYPE_DATE = 570,
       FBI_SQL_INT64 = 580,
       FBI_SQL_INT128 = 32752,
       FBI_SQL_TIMESTAMP_TZ = 32754,
       FBI_SQL_TIME_TZ = 32756,
       FBI_SQL_DEC16 = 32760,
       FBI_SQL_DEC34 = 32762,
       FBI_SQL_BOOLEAN = 32764
};

enum { FBI_CHARSET_OCTETS = 1 };

enum { /* database information items (inf_pub.h) */
       FBI_INFO_END = 1,
       FBI_INFO_DB_ID = 4,
       FBI_INFO_INSERT_COUNT = 25,
       FBI_INFO_UPDATE_COUNT = 26,
       FBI_INFO_DELETE_COUNT = 27,
       FBI_INFO_FIREBIRD_VERSION = 103,
       FBI_INFO_DB_GUID = 144,
       FBI_INFO_USERNAME = 147 /* since 5.0 */
};

/* Status vector items (iberror.h). */
enum { FBI_ARG_END = 0, FBI_ARG_GDS = 1, FBI_ARG_STRING = 2, FBI_ARG_COUNTED_STRING = 3 };
#define FBI_ISC_RANDOM ((intptr_t)335544382) /* prints its string argument as it is */
#define FBI_ISC_CANCELLED ((intptr_t)335544794)

enum { FBI_PLUGIN_TYPE_REPLICATOR = 11 };

/* ---- Status ---------------------------------------------------------------------------- */
enum { FBI_STATE_ERRORS = 2, FBI_RESULT_OK = 0, FBI_RESULT_NO_DATA = 1, FBI_RESULT_SEGMENT = 2 };

struct fbi_status {
    FBI_HEAD(fbi_status_vt);
};
struct fbi_status_vt {
    FBI_VT_HEAD;
    void (*dispose)(struct fbi_status *);
    void (*init)(struct fbi_status *);
    unsigned (*get_state)(const struct fbi_status *);
    void (*set_errors2)(struct fbi_status *, unsigned length, const intptr_t *value);
    fbi_unused set_warnings2;
    void (*set_errors)(struct fbi_status *, const intptr_t *value);
    fbi_unused set_warnings;
    const intptr_t *(*get_errors)(const struct fbi_status *);
    fbi_unused get_warnings, clone;
};

/* ---- Metadata, result sets, blobs, transactions, attachments ----------------------------- */
struct fbi_message_metadata {
    FBI_HEAD(fbi_message_metadata_vt);
};
struct fbi_message_metadata_vt {
    FBI_VT_REFCOUNTED(fbi_message_metadata);
    unsigned (*get_count)(struct fbi_message_metadata *, struct fbi_status *);
    fbi_unused get_field, get_relation, get_owner;
    const char *(*get_alias)(struct fbi_message_metadata *, struct fbi_status *, unsigned index);
    unsigned (*get_type)(struct fbi_message_metadata *, struct fbi_status *, unsigned index);
    fbi_unused is_nullable;
    int (*get_sub_type)(struct fbi_message_metadata *, struct fbi_status *, unsigned index);
    unsigned (*get_length)(struct fbi_message_metadata *, struct fbi_status *, unsigned index);
    int (*get_scale)(struct fbi_message_metadata *, struct fbi_status *, unsigned index);
    unsigned (*get_charset)(struct fbi_message_metadata *, struct fbi_status *, unsigned index);
    unsigned (*get_offset)(struct fbi_message_metadata *, struct fbi_status *, unsigned index);
    unsigned (*get_null_offset)(struct fbi_message_metadata *, struct fbi_status *, unsigned index);
    fbi_unused get_builder;
    unsigned (*get_message_length)(struct fbi_message_metadata *, struct fbi_status *);
};

struct fbi_result_set {
    FBI_HEAD(fbi_result_set_vt);
};
enum { FBI_RESULT_SET_HAS_CLOSE = 4 };
struct fbi_result_set_vt {
    FBI_VT_REFCOUNTED(fbi_result_set);
    int (*fetch_next)(struct fbi_result_set *, struct fbi_status *, void *message);
    fbi_unused fetch_prior, fetch_first, fetch_last, fetch_absolute, fetch_relative, is_eof, is_bof;
    struct fbi_message_metadata *(*get_metadata)(struct fbi_result_set *, struct fbi_status *);
    void (*deprecated_close)(struct fbi_result_set *, struct fbi_status *);
    fbi_unused set_delayed_output_format;
    /* version 4 */
    void (*close)(struct fbi_result_set *, struct fbi_status *);
};

struct fbi_quad {
    int32_t high;
    uint32_t low;
};

struct fbi_blob {
    FBI_HEAD(fbi_blob_vt);
};
enum { FBI_BLOB_HAS_CLOSE = 4 };
struct fbi_blob_vt {
    FBI_VT_REFCOUNTED(fbi_blob);
    void (*get_info)(struct fbi_blob *, struct fbi_status *, unsigned items_length,
                     const unsigned char *items, unsigned buffer_length, unsigned char *buffer);
    int (*get_segment)(struct fbi_blob *, struct fbi_status *, unsigned buffer_length, void *buffer,
                       unsigned *segment_length);
    fbi_unused put_segment, deprecated_cancel;
    void (*deprecated_close)(struct fbi_blob *, struct fbi_status *);
    fbi_unused seek;
    /* version 4 */
    fbi_unused cancel;
    void (*close)(struct fbi_blob *, struct fbi_status *);
};

struct fbi_transaction {
    FBI_HEAD(fbi_transaction_vt);
};
enum { FBI_TRANSACTION_HAS_COMMIT = 4 };
struct fbi_transaction_vt {
    FBI_VT_REFCOUNTED(fbi_transaction);
    void (*get_info)(struct fbi_transaction *, struct fbi_status *, unsigned items_length,
                     const unsigned char *items, unsigned buffer_length, unsigned char *buffer);
    fbi_unused prepare;
    void (*deprecated_commit)(struct fbi_transaction *, struct fbi_status *);
    fbi_unused commit_retaining, deprecated_rollback, rollback_retaining, deprecated_disconnect,
        join, validate, enter_dtc;
    /* version 4 */
    void (*commit)(struct fbi_transaction *, struct fbi_status *);
};

struct fbi_statement {
    FBI_HEAD(fbi_statement_vt);
};
enum { FBI_STATEMENT_HAS_FREE = 5 };
struct fbi_statement_vt {
    FBI_VT_REFCOUNTED(fbi_statement);
    fbi_unused get_info;
    unsigned (*get_type)(struct fbi_statement *, struct fbi_status *);
    fbi_unused get_plan, get_affected_records;
    struct fbi_message_metadata *(*get_input_metadata)(struct fbi_statement *, struct fbi_status *);
    struct fbi_message_metadata *(*get_output_metadata)(struct fbi_statement *,
                                                        struct fbi_status *);
    struct fbi_transaction *(*execute)(struct fbi_statement *, struct fbi_status *,
                                       struct fbi_transaction *, struct fbi_message_metadata *in,
                                       void *in_buffer, struct fbi_message_metadata *out,
                                       void *out_buffer);
    struct fbi_result_set *(*open_cursor)(struct fbi_statement *, struct fbi_status *,
                                          struct fbi_transaction *, struct fbi_message_metadata *in,
                                          void *in_buffer, struct fbi_message_metadata *out,
                                          unsigned flags);
    fbi_unused set_cursor_name;
    void (*deprecated_free)(struct fbi_statement *, struct fbi_status *);
    fbi_unused get_flags;
    /* version 4 */
    fbi_unused get_timeout, set_timeout, create_batch;
    /* version 5 */
    void (*free)(struct fbi_statement *, struct fbi_status *);
};

struct fbi_attachment {
    FBI_HEAD(fbi_attachment_vt);
};
enum { FBI_ATTACHMENT_HAS_DETACH = 5 };
enum { FBI_CANCEL_RAISE = 3 };

struct fbi_attachment_vt {
    FBI_VT_REFCOUNTED(fbi_attachment);
    void (*get_info)(struct fbi_attachment *, struct fbi_status *, unsigned items_length,
                     const unsigned char *items, unsigned buffer_length, unsigned char *buffer);
    struct fbi_transaction *(*start_transaction)(struct fbi_attachment *, struct fbi_status *,
                                                 unsigned tpb_length, const unsigned char *tpb);
    fbi_unused reconnect_transaction, compile_request, transact_request, create_blob;
    struct fbi_blob *(*open_blob)(struct fbi_attachment *, struct fbi_status *,
                                  struct fbi_transaction *, struct fbi_quad *id,
                                  unsigned bpb_length, const unsigned char *bpb);
    fbi_unused get_slice, put_slice, execute_dyn;
    struct fbi_statement *(*prepare)(struct fbi_attachment *, struct fbi_status *,
                                     struct fbi_transaction *, unsigned statement_length,
                                     const char *statement, unsigned dialect, unsigned flags);
    struct fbi_transaction *(*execute)(struct fbi_attachment *, struct fbi_status *,
                                       struct fbi_transaction *, unsigned statement_length,
                                       const char *statement, unsigned dialect,
                                       struct fbi_message_metadata *in, void *in_buffer,
                                       struct fbi_message_metadata *out, void *out_buffer);
    struct fbi_result_set *(*open_cursor)(struct fbi_attachment *, struct fbi_status *,
                                          struct fbi_transaction *, unsigned statement_length,
                                          const char *statement, unsigned dialect,
                                          struct fbi_message_metadata *in_metadata, void *in_buffer,
                                          struct fbi_message_metadata *out_metadata,
                                          const char *cursor_name, unsigned cursor_flags);
    fbi_unused que_events;
    void (*cancel_operation)(struct fbi_attachment *, struct fbi_status *, int option);
    fbi_unused ping;
    void (*deprecated_detach)(struct fbi_attachment *, struct fbi_status *);
    fbi_unused deprecated_drop_database;
    /* version 4 */
    fbi_unused get_idle_timeout, set_idle_timeout, get_statement_timeout, set_statement_timeout,
        create_batch, create_replicator;
    /* version 5 */
    void (*detach)(struct fbi_attachment *, struct fbi_status *);
};

struct fbi_provider {
    FBI_HEAD(fbi_provider_vt);
};
struct fbi_provider_vt {
    FBI_VT_REFCOUNTED(fbi_provider);
    fbi_unused set_owner, get_owner;
    struct fbi_attachment *(*attach_database)(struct fbi_provider *, struct fbi_status *,
                                              const char *path, unsigned dpb_length,
                                              const unsigned char *dpb);
};

/* ---- Plugins: configuration, manager, master --------------------------------------------- */
struct fbi_config_entry {
    FBI_HEAD(fbi_config_entry_vt);
};
struct fbi_config_entry_vt {
    FBI_VT_REFCOUNTED(fbi_config_entry);
    fbi_unused get_name;
    const char *(*get_value)(struct fbi_config_entry *);
};

struct fbi_config {
    FBI_HEAD(fbi_config_vt);
};
struct fbi_config_vt {
    FBI_VT_REFCOUNTED(fbi_config);
    struct fbi_config_entry *(*find)(struct fbi_config *, struct fbi_status *, const char *name);
};

struct fbi_plugin_config {
    FBI_HEAD(fbi_plugin_config_vt);
};
struct fbi_plugin_config_vt {
    FBI_VT_REFCOUNTED(fbi_plugin_config);
    fbi_unused get_config_file_name;
    struct fbi_config *(*get_default_config)(struct fbi_plugin_config *, struct fbi_status *);
};

struct fbi_plugin_base {
    FBI_HEAD(fbi_plugin_base_vt);
};

struct fbi_plugin_factory {
    FBI_HEAD(fbi_plugin_factory_vt);
};
enum { FBI_PLUGIN_FACTORY_VERSION = 2 };
struct fbi_plugin_factory_vt {
    FBI_VT_HEAD;
    void *(*create_plugin)(struct fbi_plugin_factory *, struct fbi_status *,
                           struct fbi_plugin_config *);
};

struct fbi_plugin_module {
    FBI_HEAD(fbi_plugin_module_vt);
};
enum { FBI_PLUGIN_MODULE_VERSION = 3 };
struct fbi_plugin_module_vt {
    FBI_VT_HEAD;
    void (*do_clean)(struct fbi_plugin_module *);
    void (*thread_detach)(struct fbi_plugin_module *);
};

struct fbi_plugin_manager {
    FBI_HEAD(fbi_plugin_manager_vt);
};
struct fbi_plugin_manager_vt {
    FBI_VT_HEAD;
    void (*register_plugin_factory)(struct fbi_plugin_manager *, unsigned type, const char *name,
                                    struct fbi_plugin_factory *);
    void (*register_module)(struct fbi_plugin_manager *, struct fbi_plugin_module *);
    void (*unregister_module)(struct fbi_plugin_manager *, struct fbi_plugin_module *);
};

/* firebird.conf: a key that it doesn't know has no number. */
struct fbi_firebird_conf {
    FBI_HEAD(fbi_firebird_conf_vt);
};
struct fbi_firebird_conf_vt {
    FBI_VT_HEAD;
    fbi_unused add_ref;
    int (*release)(struct fbi_firebird_conf *);
    unsigned (*get_key)(struct fbi_firebird_conf *, const char *name);
    fbi_unused as_integer;
    const char *(*as_string)(struct fbi_firebird_conf *, unsigned key);
};

struct fbi_config_manager {
    FBI_HEAD(fbi_config_manager_vt);
};
struct fbi_config_manager_vt {
    FBI_VT_HEAD;
    const char *(*get_directory)(struct fbi_config_manager *, unsigned code);
    struct fbi_firebird_conf *(*get_firebird_conf)(struct fbi_config_manager *);
    fbi_unused get_database_conf, get_plugin_config, get_install_directory;
    const char *(*get_root_directory)(struct fbi_config_manager *);
};

struct fbi_util {
    FBI_HEAD(fbi_util_vt);
};
struct fbi_util_vt {
    FBI_VT_HEAD;
    fbi_unused get_fb_version, load_blob, dump_blob, get_perf_counters, execute_create_database,
        decode_date, decode_time, encode_date, encode_time;
    unsigned (*format_status)(struct fbi_util *, char *buffer, unsigned size, struct fbi_status *);
    unsigned (*get_client_version)(struct fbi_util *); /* major * 256 + minor */
};

struct fbi_master {
    FBI_HEAD(fbi_master_vt);
};
struct fbi_master_vt {
    FBI_VT_HEAD;
    struct fbi_status *(*get_status)(struct fbi_master *);
    struct fbi_provider *(*get_dispatcher)(struct fbi_master *);
    struct fbi_plugin_manager *(*get_plugin_manager)(struct fbi_master *);
    fbi_unused get_timer_control, get_dtc, register_attachment, register_transaction,
        get_metadata_builder, server_mode;
    struct fbi_util *(*get_util_interface)(struct fbi_master *);
    struct fbi_config_manager *(*get_config_manager)(struct fbi_master *);
    fbi_bool (*get_process_exiting)(struct fbi_master *);
};

/* ---- Replication: what the engine hands to a replicator ---------------------------------- */
struct fbi_replicated_field {
    FBI_HEAD(fbi_replicated_field_vt);
};
struct fbi_replicated_field_vt {
    FBI_VT_HEAD;
    const char *(*get_name)(struct fbi_replicated_field *); /* null: the column is gone */
    unsigned (*get_type)(struct fbi_replicated_field *);
    int (*get_sub_type)(struct fbi_replicated_field *);
    int (*get_scale)(struct fbi_replicated_field *);
    unsigned (*get_length)(struct fbi_replicated_field *); /* bytes, without VARCHAR's length */
    unsigned (*get_charset)(struct fbi_replicated_field *);
    const void *(*get_data)(struct fbi_replicated_field *); /* null: SQL NULL */
};

struct fbi_replicated_record {
    FBI_HEAD(fbi_replicated_record_vt);
};
struct fbi_replicated_record_vt {
    FBI_VT_HEAD;
    unsigned (*get_count)(struct fbi_replicated_record *);
    /* One field object serves all columns: a second call overwrites what the first returned.
     * Null: a computed or dropped column. */
    struct fbi_replicated_field *(*get_field)(struct fbi_replicated_record *, unsigned index);
    fbi_unused get_raw_length, get_raw_data;
};

struct fbi_replicated_transaction {
    FBI_HEAD(fbi_replicated_transaction_vt);
};
enum { FBI_REPLICATED_TRANSACTION_VERSION = 3 };
struct fbi_replicated_transaction_vt {
    FBI_VT_HEAD;
    void (*dispose)(struct fbi_replicated_transaction *);
    void (*prepare)(struct fbi_replicated_transaction *, struct fbi_status *);
    void (*commit)(struct fbi_replicated_transaction *, struct fbi_status *);
    void (*rollback)(struct fbi_replicated_transaction *, struct fbi_status *);
    void (*start_savepoint)(struct fbi_replicated_transaction *, struct fbi_status *);
    void (*release_savepoint)(struct fbi_replicated_transaction *, struct fbi_status *);
    void (*rollback_savepoint)(struct fbi_replicated_transaction *, struct fbi_status *);
    void (*insert_record)(struct fbi_replicated_transaction *, struct fbi_status *,
                          const char *table, struct fbi_replicated_record *);
    void (*update_record)(struct fbi_replicated_transaction *, struct fbi_status *,
                          const char *table, struct fbi_replicated_record *old_record,
                          struct fbi_replicated_record *new_record);
    void (*delete_record)(struct fbi_replicated_transaction *, struct fbi_status *,
                          const char *table, struct fbi_replicated_record *);
    void (*execute_sql)(struct fbi_replicated_transaction *, struct fbi_status *, const char *sql);
    void (*execute_sql_intl)(struct fbi_replicated_transaction *, struct fbi_status *,
                             unsigned charset, const char *sql);
};

struct fbi_replicated_session {
    FBI_HEAD(fbi_replicated_session_vt);
};
enum { FBI_REPLICATED_SESSION_VERSION = 4 };
struct fbi_replicated_session_vt {
    FBI_VT_REFCOUNTED(fbi_replicated_session);
    void (*set_owner)(struct fbi_replicated_session *, void *owner);
    void *(*get_owner)(struct fbi_replicated_session *);
    fbi_bool (*init)(struct fbi_replicated_session *, struct fbi_status *, struct fbi_attachment *);
    struct fbi_replicated_transaction *(*start_transaction)(struct fbi_replicated_session *,
                                                            struct fbi_status *,
                                                            struct fbi_transaction *,
                                                            int64_t number);
    void (*cleanup_transaction)(struct fbi_replicated_session *, struct fbi_status *,
                                int64_t number);
    void (*set_sequence)(struct fbi_replicated_session *, struct fbi_status *, const char *name,
                         int64_t value);
};

#endif
